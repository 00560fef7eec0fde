"""Entropy of attention: over how many keys a query spreads."""

import numpy as np
from jaxtyping import Float, Int

from rebased.analysis.checks import broadcasts_to, weights_array

__all__ = ["row_entropy"]


def row_entropy(
    attention: Float[np.ndarray, "*rows S"],
    *,
    normalize: bool = False,
    num_keys: Int[np.ndarray, "*#rows"] | None = None,
) -> Float[np.ndarray, "*rows"]:
    """``-Σ p ln p`` in nats of each row, with p the row over its sum and 0 ln 0 = 0; NaN for a row of zeros.

    With ``normalize`` it is divided by its largest possible value, ln of the number of keys a row can attend to
    (``num_keys``, such as t + 1 under a causal mask; S by default), so 1 is uniform; with one key it is 0.
    """
    attention = weights_array("attention", attention)
    if attention.ndim < 1 or attention.shape[-1] < 1:
        raise ValueError(f"attention has shape {attention.shape}; it must be (..., S) with at least one key")
    if num_keys is not None and not normalize:
        raise ValueError("num_keys is for normalize=True, got normalize=False; the entropy itself does not need it")
    totals = attention.sum(-1)
    shares = np.divide(attention, totals[..., None], out=np.full_like(attention, np.nan), where=totals[..., None] > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares != 0)
    entropy = np.maximum(-(shares * logs).sum(-1), 0)  # -Σ 1 ln 1 is minus zero
    if not normalize:
        return entropy
    counts = np.asarray(attention.shape[-1] if num_keys is None else num_keys)
    if not broadcasts_to(counts.shape, entropy.shape):
        raise ValueError(f"num_keys has shape {counts.shape}; it must be {entropy.shape}, one for each row")
    if counts.min() < 1 or counts.max() > attention.shape[-1]:
        raise ValueError(
            f"num_keys is from {counts.min()} to {counts.max()}; it must be from 1 to {attention.shape[-1]}"
        )
    return entropy / np.where(counts > 1, np.log(counts), 1)
