"""The command line in this process, and what it says."""

import re

from typer.testing import CliRunner

from rebased.cli.app import app


def run(*arguments: object) -> tuple[int, str]:
    """The exit status, and what was said without frames and line breaks."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(re.sub("[│╭╮╰╯─]", " ", result.output).split())
