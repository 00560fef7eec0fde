"""Benches with a spinner."""

from collections.abc import Callable
from typing import Any, TypeVar

from rebased.bench.verify import WrongBackendError
from rebased.cli.console import fail, make_console

__all__ = ["run_with_progress"]

Found = TypeVar("Found")


def run_with_progress(run: Callable[..., Found], *arguments: Any) -> Found:
    """``run(*arguments, progress=…)`` with a spinner on a terminal; a refusal ends the command with its reason."""
    try:
        with make_console(stderr=True).status("starting") as status:
            return run(*arguments, progress=status.update)
    except (WrongBackendError, ValueError) as error:  # wrong, or not able to take these sizes
        fail(error)
