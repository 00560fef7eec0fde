"""Where examples come from: recall and copying tasks, the same on every device."""

from collections.abc import Callable

from rebased.tasks.copying import copying
from rebased.tasks.examples import IGNORED, Examples
from rebased.tasks.haystack import mqar_haystack
from rebased.tasks.leakage import count_shared
from rebased.tasks.mqar import mqar
from rebased.tasks.single_query import single_query_recall

__all__ = [
    "IGNORED",
    "TASKS",
    "Examples",
    "copying",
    "count_shared",
    "mqar",
    "mqar_haystack",
    "single_query_recall",
]

TASKS: dict[str, Callable[..., Examples]] = {
    "mqar": mqar,
    "mqar_haystack": mqar_haystack,
    "single_query_recall": single_query_recall,
    "copying": copying,
}
"""Tasks by name, as configurations have them. Yours too: ``TASKS["mine"] = my_task``.

A task takes num_examples, seq_len, settings of its own, and the keywords seed, first_example and device.
"""
