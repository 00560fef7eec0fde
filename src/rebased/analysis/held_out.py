"""Accuracies at learning rates that were chosen without them."""

import numpy as np
from jaxtyping import Float

__all__ = ["held_out"]


def held_out(accuracies: Float[np.ndarray, "... S K"]) -> Float[np.ndarray, "... S"]:
    """Of S seeds at K learning rates, each seed's accuracy at the rate that is best for the other seeds.

    If the rate were chosen by the same accuracies that are then compared, models whose accuracies vary most would look
    best. With a single seed, its own best rate is taken. The S results depend on each other, so tests for independent
    values do not apply to them.
    """
    num_seeds = accuracies.shape[-2]
    of_others = accuracies
    if num_seeds > 1:
        of_others = (accuracies.sum(axis=-2, keepdims=True) - accuracies) / (num_seeds - 1)
    chosen = of_others.argmax(axis=-1)[..., None]
    return np.take_along_axis(accuracies, chosen, axis=-1)[..., 0]
