"""Which tokens of a text could be recalled from what stands before them: the paper's AR tokens.

After Arora et al. 2023 (Zoology): in "… Hakuna Matata … Hakuna Matata" the last token follows a token it has followed
before, so a model that looks back can copy it. The paper only says "tokens that recur"; the share of AR tokens that
its Table 2 implies (45 %) is in the range of repeated pairs of tokens, and far below that of repeated tokens.
"""

import numpy as np
from jaxtyping import Bool, Int

from rebased.checks import check_choice

__all__ = ["RECURRENCES", "recurs"]

RECURRENCES = ("bigram", "token")


def recurs(
    tokens: Int[np.ndarray, "W T"], by: str = "bigram", *, sequences: Int[np.ndarray, "W T"] | None = None
) -> Bool[np.ndarray, "W T"]:
    """Whether each token, with the one before it ("bigram") or by itself ("token"), occurred earlier in its window.

    Windows are rows. ``sequences`` numbers the texts that lie in a row one after the other, from 0: each is then a
    window of its own, and the first token of each, which follows nothing, does not recur as a bigram. ValueError for
    tokens below 0 and unknown names.
    """
    check_choice("recurrence", by, RECURRENCES)
    if tokens.ndim != 2:
        raise ValueError(f"tokens has shape {tokens.shape}; it must be (W, T)")
    if sequences is not None and sequences.shape != tokens.shape:
        raise ValueError(f"sequences has shape {sequences.shape}; it must be {tokens.shape}")
    found = np.zeros(tokens.shape, dtype=bool)
    if not tokens.size:
        return found
    if tokens.min() < 0:
        raise ValueError(f"tokens has {tokens.min()}; none may be negative")
    tokens = tokens.astype(np.int64)  # narrow types would not hold one number more
    texts = np.zeros_like(tokens) if sequences is None else sequences
    if by == "token":
        return _occurred_before(texts, tokens)
    # The first of a text follows none of its tokens: as if it followed one that is nowhere else, it does not recur.
    before = np.where(texts[:, 1:] == texts[:, :-1], tokens[:, :-1], tokens.max() + 1)
    found[:, 1:] = _occurred_before(texts[:, 1:], before, tokens[:, 1:])
    return found


def _occurred_before(*parts: Int[np.ndarray, "W T"]) -> Bool[np.ndarray, "W T"]:
    """Whether an earlier entry of the row agrees with this one in all parts.

    One number for each entry, whose last part is its place: sorted, equals are neighbours in the order of the text. A
    plain sort of integers is several times as fast as a stable one that gives indices.
    """
    shape = parts[0].shape
    if not parts[0].size:
        return np.zeros(shape, dtype=bool)
    codes = parts[0].astype(np.int64)
    for part in (*parts[1:], np.broadcast_to(np.arange(shape[1]), shape)):
        codes = _paired(codes, part)
    values, places = np.divmod(np.sort(codes, axis=1), shape[1])
    found = np.zeros(shape, dtype=bool)
    np.put_along_axis(found, places[:, 1:], values[:, 1:] == values[:, :-1], axis=1)
    return found


def _paired(first: Int[np.ndarray, "W T"], second: Int[np.ndarray, "W T"]) -> Int[np.ndarray, "W T"]:
    """A number for each pair, in the order of pairs."""
    if (int(first.max()) + 1) * (int(second.max()) + 1) >= 2**63:
        first, second = (np.unique(part, return_inverse=True)[1].reshape(part.shape) for part in (first, second))
    return first * (second.max() + 1) + second
