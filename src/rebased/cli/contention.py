"""A word on what else the machine was doing."""

from rich.console import Console

from rebased.cli.console import print_text

__all__ = ["warn_of_contention"]

_QUIET = 0.2
"""CPUs that others may use before timings are in doubt; an idle machine's own services take a few hundredths."""


def warn_of_contention(other_cpus: float | None, console: Console) -> None:
    """Print a warning if other processes took so much that timings mean little."""
    if (other_cpus or 0) > _QUIET:
        warning = f"warning: other processes kept {other_cpus:.1f} CPUs busy meanwhile; time again on a quiet machine"
        print_text(warning, console, style="yellow")
