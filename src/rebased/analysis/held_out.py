"""Accuracies at learning rates that were chosen without them."""

import numpy as np
from jaxtyping import Float

__all__ = ["held_out"]

_TIE = 1e-12  # Of accuracies, which are about 1: means that differ by less do so by rounding.


def held_out(accuracies: Float[np.ndarray, "... S K"]) -> Float[np.ndarray, "... S"]:
    """Of S seeds at K learning rates, each seed's accuracy at the rate that is best for the other seeds.

    Of equally good rates it is the first: where runs stop at an accuracy there are many.

    If the rate were chosen by the same accuracies that are then compared, models whose accuracies vary most would look
    best. With a single seed, its own best rate is taken. The S results depend on each other, so tests for independent
    values do not apply to them.
    """
    num_seeds = accuracies.shape[-2]
    of_others = accuracies
    if num_seeds > 1:
        of_others = (accuracies.sum(axis=-2, keepdims=True) - accuracies) / (num_seeds - 1)
    chosen = (of_others >= of_others.max(axis=-1, keepdims=True) - _TIE).argmax(axis=-1)[..., None]
    return np.take_along_axis(accuracies, chosen, axis=-1)[..., 0]
