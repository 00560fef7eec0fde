"""Where commands print to."""

import re
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

__all__ = ["STOPPED", "fail", "fail_stopped", "in_options", "make_console", "make_folder", "print_text"]

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


def fail_stopped() -> NoReturn:
    """End a command that Ctrl-C has stopped, and that goes on where it was when it is given again."""
    fail("stopped; the same command goes on from here", status=STOPPED)


def in_options(message: object, *names: str, **others: str) -> str:
    """``--errors replace`` for ``errors='replace'``, as it is typed: of arguments of the library with these names.

    ``others``: those whose options have other names; ``crossing=False`` becomes ``--no-crossing``.
    """
    options = {name: name for name in names} | others

    def typed(found: re.Match[str]) -> str:
        option, value = options[found[1]].replace("_", "-"), found[2]
        if value in ("True", "False"):
            return f"--{option}" if value == "True" else f"--no-{option}"
        return f"--{option} {value}"

    return re.sub(rf"\b({'|'.join(options)})='?([^\s',;:]+)'?", typed, str(message))


def make_folder(folder: Path) -> None:
    """Make ``folder`` and those above it, or end the command: before the work whose result goes there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"cannot make the folder {folder}: {error.strerror}")
