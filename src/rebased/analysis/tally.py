"""What a language model's losses add up to, window by window: all that is said of them is made of these sums."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

__all__ = ["FIRST_BUCKET", "KINDS", "Score", "Tally", "bucket_of", "bucket_start", "jackknife_error"]

KINDS = ("all", "ar", "non_ar")
_RECURS = {"all": slice(0, 2), "non_ar": slice(0, 1), "ar": slice(1, 2)}

FIRST_BUCKET = 128
"""Positions in the first bucket; each further one ends at twice the position where it begins."""

_MOST_NATS = 300.0
"""A mean loss above has no perplexity: its square, which an error needs, is no float64."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Losses of some of the tokens."""

    num_tokens: int
    """How many."""
    loss: float | None
    """Their mean, in nats; None for no tokens."""
    perplexity: float | None
    """exp(loss); None also for losses beyond all sense."""
    standard_error: float | None
    """Of the perplexity, by the jackknife over windows; None unless two windows have such tokens."""


class Tally:
    """Sums of losses, tokens and bytes by window, document set, bucket of positions, and whether a token recurs."""

    def __init__(self, num_windows: int, num_sets: int, length: int) -> None:
        """``length``: of a window, which says how many buckets there are."""
        self.num_windows = num_windows
        self.num_buckets = int(bucket_of(np.array(length - 1))) + 1
        shape = (num_windows, num_sets, self.num_buckets, 2)
        self._nats, self._counts, self._bytes = (np.zeros(shape) for _ in range(3))

    def add(
        self,
        window: int,
        losses: Float[np.ndarray, "N"],
        *,
        sets: Int[np.ndarray, "N"],
        positions: Int[np.ndarray, "N"],
        recurs: Bool[np.ndarray, "N"],
        num_bytes: Float[np.ndarray, "N"],
    ) -> None:
        """The predicted tokens of a window."""
        shape = self._nats.shape[1:]
        cells = np.ravel_multi_index((sets, bucket_of(positions), recurs.astype(np.int64)), shape)
        for sums, weights in ((self._nats, losses), (self._counts, None), (self._bytes, num_bytes)):
            sums[window] += np.bincount(cells, weights, minlength=math.prod(shape)).reshape(shape)

    def score(self, kind: str = "all", *, document_set: int | None = None, bucket: int | None = None) -> Score:
        """Of the tokens of one of `KINDS`, in one set or all, in one bucket or all."""
        nats, counts = (self._by_window(sums, kind, document_set, bucket) for sums in (self._nats, self._counts))
        num_tokens = int(counts.sum())
        loss = float(nats.sum() / num_tokens) if num_tokens else None
        if loss is None or loss > _MOST_NATS:
            return Score(num_tokens=num_tokens, loss=loss, perplexity=None, standard_error=None)
        error = jackknife_error(nats, counts)
        return Score(num_tokens=num_tokens, loss=loss, perplexity=math.exp(loss), standard_error=error)

    def ar_fraction(self, *, document_set: int | None = None, bucket: int | None = None) -> float | None:
        """The share of tokens that recur; None where there are no tokens."""
        recurring, every = (self._by_window(self._counts, kind, document_set, bucket).sum() for kind in ("ar", "all"))
        return float(recurring / every) if every else None

    def num_bytes(self, *, document_set: int | None = None, bucket: int | None = None) -> float:
        return float(self._by_window(self._bytes, "all", document_set, bucket).sum())

    def bits_per_byte(self, *, document_set: int | None = None, bucket: int | None = None) -> float | None:
        """All nats, in bits, over all bytes; None where there are no bytes."""
        num_bytes = self.num_bytes(document_set=document_set, bucket=bucket)
        nats = self._by_window(self._nats, "all", document_set, bucket).sum()
        return float(nats / math.log(2) / num_bytes) if num_bytes else None

    def _by_window(
        self, sums: Float[np.ndarray, "W S K 2"], kind: str, document_set: int | None, bucket: int | None
    ) -> Float[np.ndarray, "W"]:
        return sums[:, _one_or_all(document_set), _one_or_all(bucket), _RECURS[kind]].sum(axis=(1, 2, 3))


def bucket_of(positions: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """0 for positions below 128, then one more for each doubling: 1 for 128 to 255, 2 for 256 to 511."""
    return np.frexp(positions // FIRST_BUCKET)[1].astype(np.int64)


def bucket_start(bucket: int) -> int:
    """The first position of a bucket, where the one before it ends."""
    return 0 if bucket == 0 else FIRST_BUCKET * 2 ** (bucket - 1)


def jackknife_error(nats: Float[np.ndarray, "W"], counts: Float[np.ndarray, "W"]) -> float | None:
    """Standard error of ``exp(Σ nats / Σ counts)``: ``√((W - 1)/W · Σ (θ_w - mean θ)²)``, θ_w without window w.

    Windows are taken as independent, although neighbours may share a document. None unless two of them have tokens.
    """
    if np.count_nonzero(counts) < 2:
        return None
    losses = (nats.sum() - nats) / (counts.sum() - counts)
    if losses.max() > _MOST_NATS:
        return None
    return float(np.sqrt((len(losses) - 1) * np.exp(losses).var()))


def _one_or_all(index: int | None) -> slice:
    return slice(None) if index is None else slice(index, index + 1)
