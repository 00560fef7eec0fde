"""How far a preparation has come: a spinner on a terminal, elsewhere a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

from rebased.cli.console import print_text
from rebased.corpora import Progress

__all__ = ["data_progress"]

_SECONDS = 10.0
"""Between lines, where there is no terminal."""


@contextmanager
def data_progress(console: Console) -> Iterator[Callable[[Progress], None]]:
    """What to call with progress."""
    rate = _Rate()
    if console.is_terminal:
        with console.status("loading the tokenizer") as status:
            yield lambda progress: status.update(escape(_describe(progress, rate)))
        return
    printed = time.monotonic()

    def print_line(progress: Progress) -> None:
        nonlocal printed
        line = _describe(progress, rate)
        if time.monotonic() >= printed + _SECONDS:
            printed = time.monotonic()
            print_text(line, console)

    yield print_line


class _Rate:
    """Bytes per second since the first call, as what was written before an interruption took no time now."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def __call__(self, num_bytes: int) -> float | None:
        now = time.monotonic()
        if self._first is None:
            self._first = now, num_bytes
            return None
        since, before = self._first
        return (num_bytes - before) / max(now - since, 1e-9)


def _describe(progress: Progress, rate: _Rate) -> str:
    speed = rate(progress.bytes)
    told = "" if speed is None else f", {speed / 1e6:.1f} MB/s"
    return (
        f"{progress.documents:,} documents, {progress.tokens:,} tokens{told}; "
        f"input {progress.inputs_read + 1} of {progress.num_inputs}: {progress.input}"
    )
