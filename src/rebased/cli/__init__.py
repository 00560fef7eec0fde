"""The command line, `rebased …`: one file a subcommand."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; exits with its status. Says what to install if typer or rich is absent."""
    # From 2.13 on, torch's profiler announces every start and stop on stderr below this level. It reads the variable
    # when it is first used, so a value the user has set stays.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        from rebased.cli.app import app
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        if absent not in {"typer", "rich"}:
            raise
        sys.exit(f"the `rebased` command needs {absent}: pip install typer rich")
    except KeyboardInterrupt:  # importing takes seconds; typer ends commands with this status itself
        sys.exit(130)
    app()
