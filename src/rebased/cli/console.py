"""Where commands print to."""

from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

__all__ = ["STOPPED", "fail", "make_console", "make_folder", "print_text"]

STOPPED = 130
"""The status of a command that Ctrl-C ended: 128 and the signal's number, as shells have it."""


def make_console(*, stderr: bool = False) -> Console:
    """A console that fits the terminal; elsewhere plain text, wide enough for a table's rows to stay on one line."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=160, no_color=True)


def print_text(text: str, console: Console, *, style: str = "") -> None:
    """A paragraph: a terminal breaks it between words; elsewhere it is one line, for whoever searches in it."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def fail(message: object, *, status: int = 1) -> NoReturn:
    """End the command with ``status`` and ``message`` on stderr: for what is wrong beyond the arguments."""
    make_console(stderr=True).print(f"error: {message}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status) from None


def make_folder(folder: Path) -> None:
    """Make ``folder`` and those above it, or end the command: before the work whose result goes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"cannot make the folder {folder}: {error.strerror}")
