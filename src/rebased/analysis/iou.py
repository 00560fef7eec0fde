"""Intersection over union of attention maps with the truth, as Table 3 is read."""

import numpy as np
from jaxtyping import Bool, Float

from rebased.analysis.checks import broadcasts_to, weights_array

__all__ = ["attention_iou", "intersection_and_union"]


def attention_iou(
    attention: Float[np.ndarray, "*B T S"],
    truth: Float[np.ndarray, "*B T S"],
    *,
    rows: Bool[np.ndarray, "*#B T"] | None = None,
    columns: Bool[np.ndarray, "*#B S"] | None = None,
) -> float:
    """``Σ min(attention, truth) / Σ max(attention, truth)`` over the chosen rows and columns of all maps together.

    For Table 3: ``attention`` averaged over heads with rows normalised over all keys, ``truth`` 1 at the position of
    the value, ``rows`` the queries, ``columns`` the pairs (0 to 2P - 1). Maps too many for memory: add up
    `intersection_and_union` of batches and divide.
    """
    intersections, unions = intersection_and_union(attention, truth, rows=rows, columns=columns)
    union = float(unions.sum())
    if union == 0:
        raise ValueError("attention and truth are zero in all chosen rows and columns; the ratio needs one that is not")
    return float(intersections.sum()) / union


def intersection_and_union(
    attention: Float[np.ndarray, "*B T S"],
    truth: Float[np.ndarray, "*B T S"],
    *,
    rows: Bool[np.ndarray, "*#B T"] | None = None,
    columns: Bool[np.ndarray, "*#B S"] | None = None,
) -> tuple[Float[np.ndarray, "*B"], Float[np.ndarray, "*B"]]:
    """Σ min and Σ max of each map. ``rows`` and ``columns`` are True where chosen, map by map or for all alike."""
    attention, truth = weights_array("attention", attention), weights_array("truth", truth)
    if attention.ndim < 2 or attention.shape != truth.shape:
        raise ValueError(f"attention {attention.shape} and truth {truth.shape} must have one shape, (..., T, S)")
    chosen = np.ones(attention.shape, dtype=bool)
    if rows is not None:
        chosen &= _chosen("rows", rows, attention.shape[:-1])[..., :, None]
    if columns is not None:
        chosen &= _chosen("columns", columns, (*attention.shape[:-2], attention.shape[-1]))[..., None, :]
    intersections = np.minimum(attention, truth).sum(axis=(-2, -1), where=chosen)
    unions = np.maximum(attention, truth).sum(axis=(-2, -1), where=chosen)
    return np.asarray(intersections), np.asarray(unions)


def _chosen(name: str, mask: Bool[np.ndarray, "..."], shape: tuple[int, ...]) -> Bool[np.ndarray, "..."]:
    mask = np.asarray(mask)
    if mask.dtype != np.bool_:
        raise ValueError(f"{name} has dtype {mask.dtype}; it must be a mask of booleans, not positions")
    # A last axis of 1 would broadcast too, but is a mistake.
    if mask.shape[-1:] != shape[-1:] or not broadcasts_to(mask.shape, shape):
        raise ValueError(f"{name} has shape {mask.shape}; it must be {shape}, or that with fewer leading axes")
    return mask
