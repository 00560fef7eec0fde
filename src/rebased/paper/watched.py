"""What runs recorded of the parameters they watch, in the form in which the ledger and findings keep it."""

from rebased.runs import Run

__all__ = ["Watched", "watched_moments"]

Watched = dict[str, list[list[float | None]]]
"""Of each parameter, mean and standard deviation after each epoch; None for what is not finite."""


def watched_moments(run: Run) -> Watched:
    """To 5 digits, so that a run gives the same from its folder and from the ledger; empty if it has recorded none."""
    names = run.metrics[0].get("watched", {}) if run.metrics else {}
    return {
        name: [[None if x is None else round(x, 5) for x in entry["watched"][name]] for entry in run.metrics]
        for name in names
    }
