"""Which sequences a step sees: decided by the seed and the step alone, not by who asks or when."""

from typing import Any

import numpy as np
from torch.utils.data import Dataset

__all__ = ["Order"]


class Order(Dataset[dict[str, Any]]):
    """The sequences of a whole run, in order: step s sees those from s × batch_size on.

    Every window comes once in each pass over the corpus, and every pass has an order of its own.
    """

    def __init__(self, windows: Any, *, seed: int, num_sequences: int) -> None:
        """``windows``: anything with a length and an index."""
        self._windows = windows
        self._seed = seed
        self._num_sequences = num_sequences
        self._pass = -1
        self._permutation = np.arange(0)

    def __len__(self) -> int:
        return self._num_sequences

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._windows[self.window(index)]

    def window(self, index: int) -> int:
        number, place = divmod(index, len(self._windows))
        if number != self._pass:
            generator = np.random.Generator(np.random.Philox(key=[self._seed, number]))
            self._pass, self._permutation = number, generator.permutation(len(self._windows))
        return int(self._permutation[place])
