"""An evaluation of a language model: what is asked, and what was found, in memory and for JSON."""

from dataclasses import asdict, dataclass
from typing import Any

from rebased.analysis.recurrence import RECURRENCES
from rebased.analysis.tally import KINDS, Score
from rebased.checks import check_choice, check_integer

__all__ = ["DTYPES", "Evaluation", "EvaluationConfig", "Group"]

DTYPES = ("float32", "bfloat16", "float64")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is evaluated. Checked on construction."""

    split: str = "validation"
    length: int | None = None
    """Tokens of a window; None for as many as the model was trained with, or else has positions."""
    crossing: bool = True
    """Whether windows are cut from the stream of documents; else a document is seen alone, or in pieces."""
    recurrence: str = "bigram"
    """What makes a token AR: one of `rebased.analysis.recurrence.RECURRENCES`."""
    max_windows: int | None = None
    """So many at most, spread evenly over the split; None for all."""
    batch_size: int = 4
    """Windows at a time: a matter of memory and time."""
    dtype: str = "float32"
    """"float32", "float64", or "bfloat16": products by autocast, weights and sums in float32."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, for a value outside its domain."""
        for name in ("length", "max_windows"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name))
        if self.length == 1:
            raise ValueError("length=1 must be at least 2: the first token of a window is not predicted")
        check_integer("batch_size", self.batch_size)
        check_choice("recurrence", self.recurrence, RECURRENCES)
        check_choice("dtype", self.dtype, DTYPES)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Some of the predicted tokens: all, those of a document set, or those in a range of positions."""

    name: str
    ar_fraction: float
    scores: dict[str, Score]
    """By `rebased.analysis.tally.KINDS`."""
    bits_per_byte: float | None
    """All nats, in bits, over the UTF-8 bytes of the predicted tokens' text; None where there are no bytes."""

    def to_json(self) -> dict[str, Any]:
        values = {kind: asdict(self.scores[kind]) for kind in KINDS}
        names = ("num_tokens", "loss", "perplexity", "standard_error")
        scores = {name: {kind: values[kind][name] for kind in KINDS} for name in names}
        return {"ar_fraction": self.ar_fraction, "bits_per_byte": self.bits_per_byte, **scores}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was found."""

    config: EvaluationConfig
    """Its length is that of the windows."""
    whole: Group
    by_set: tuple[Group, ...]
    by_position: tuple[Group, ...]
    num_windows: int
    num_bytes: float
    """Of the predicted tokens' text."""
    seconds: float
    notes: tuple[str, ...]
    """What a reader should know of it."""

    def to_json(self) -> dict[str, Any]:
        """The whole's numbers by their names, the groups' under theirs."""
        return self.whole.to_json() | {
            "config": asdict(self.config),
            "by_set": {group.name: group.to_json() for group in self.by_set},
            "by_position": {group.name: group.to_json() for group in self.by_position},
            "num_windows": self.num_windows,
            "num_bytes": self.num_bytes,
            "seconds": self.seconds,
            "notes": list(self.notes),
        }
