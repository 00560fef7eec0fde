"""An evaluation of a language model as a table: all, by document set, by position."""

from rich.console import Console

from rebased.analysis.evaluation import Evaluation, Group
from rebased.analysis.pages import Table
from rebased.analysis.tally import KINDS, Score
from rebased.cli.console import print_text
from rebased.cli.numbers import ABSENT, count
from rebased.cli.section import print_table

__all__ = ["print_evaluation"]

_HEADER = ("", "all", "AR", "non-AR", "AR fraction", "tokens", "bits per byte")
_AR = {"bigram": "it followed the same token before in its window", "token": "it was there before in its window"}


def print_evaluation(evaluation: Evaluation, corpus: str, console: Console) -> None:
    """Print the numbers, how they came about, and what should be known of them."""
    print_text(_caption(evaluation, corpus), console)
    rows = [_row("all", evaluation.whole)]
    rows += [_row(f"set {group.name}", group) for group in evaluation.by_set]
    rows += [_row(f"positions {group.name}", group) for group in evaluation.by_position]
    console.print()
    print_table(Table.of("Perplexity ± standard error", _HEADER, rows), console)
    for note in evaluation.notes:
        print_text(f"note: {note}", console)


def _caption(evaluation: Evaluation, corpus: str) -> str:
    config = evaluation.config
    num_tokens, num_windows = evaluation.whole.scores["all"].num_tokens, evaluation.num_windows
    cut = "" if config.crossing else ", each document for itself"
    return (
        f"{corpus}, {config.split}: {count(num_tokens, 'predicted token')}, "
        f"{count(num_windows, 'window')} of {config.length}{cut}; "
        f"{config.dtype}, {num_windows / evaluation.seconds:.3g} windows a second\n"
        f"A token is AR if {_AR[config.recurrence]}. Standard errors: jackknife over windows. Bits per byte: of the "
        f"{evaluation.num_bytes:,.0f} bytes of UTF-8 that the predicted tokens stand for; ends of text have none"
    )


def _row(name: str, group: Group) -> list[str]:
    return [
        name,
        *(_perplexity(group.scores[kind]) for kind in KINDS),
        f"{group.ar_fraction:.3f}",
        f"{group.scores['all'].num_tokens:,}",
        ABSENT if group.bits_per_byte is None else f"{group.bits_per_byte:.4f}",
    ]


def _perplexity(score: Score) -> str:
    if score.perplexity is None:
        return ABSENT
    error = "" if score.standard_error is None else f" ± {score.standard_error:.2f}"
    return f"{score.perplexity:,.2f}{error}"
