"""The state of softmax attention: keys and values, which grow with the sequence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from rebased.layers.growing import extend
from rebased.layers.rows import pick
from rebased.layers.states import MixerState
from rebased.ops.positions import token_counts, token_positions

__all__ = ["KVCache"]


@dataclass(frozen=True, eq=False)
class KVCache(MixerState):
    """Keys (rotated, where the layer does so) and values of all tokens, or of as many as a window needs."""

    keys: Float[Tensor, "B S Hk D"]
    values: Float[Tensor, "B S Hk D"]
    count: Int[Tensor, " B"]
    """Real tokens so far, those that are no longer kept included."""
    positions: Int[Tensor, "B S"] | None = None
    """The number of real tokens before each one, -1 in places without a real token.

    None if every place has a real token. Then no mask is needed: these are the last S tokens, in order.
    """

    @classmethod
    def of(
        cls, keys: Float[Tensor, "B S Hk D"], values: Float[Tensor, "B S Hk D"], key_mask: Bool[Tensor, "B S"] | None
    ) -> Self:
        """Of the first tokens of a sequence."""
        count = token_counts(key_mask, None, keys)
        positions = None if key_mask is None else token_positions(key_mask, None, None, keys).where(key_mask, -1)
        return cls(keys, values, count, positions)

    def written_positions(self) -> Int[Tensor, "B S"]:
        """``positions``, written out where they are None."""
        if self.positions is not None:
            return self.positions
        S = self.keys.shape[1]
        return self.count[:, None] - S + torch.arange(S, device=self.count.device)

    def append(self, new: Self) -> Self:
        """Both, in the dtype of the new keys. The positions of ``new`` begin with 0."""
        positions = None
        if self.positions is not None or new.positions is not None:
            following = new.written_positions()
            following = (following + self.count[:, None]).where(following >= 0, -1)
            positions = torch.cat([self.written_positions(), following], dim=1)
        return type(self)(
            extend(self.keys, new.keys),
            extend(self.values, new.values),
            self.count + new.count,
            positions,
        )

    def last(self, num_places: int) -> Self:
        """At most so many places, with the last real tokens."""
        start = self.keys.shape[1] - num_places
        if start <= 0:
            return self
        if self.positions is None:
            # Copies: a view would keep all of the sequence in memory.
            return type(self)(self.keys[:, start:].clone(), self.values[:, start:].clone(), self.count)
        order = self.positions.argsort(dim=1)[:, start:]  # places without a real token come first
        keys, values, positions = (pick(x, order) for x in (self.keys, self.values, self.positions))
        return type(self)(keys, values, self.count, positions)

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """The states of several batches as those of one; shorter ones are padded on the left."""
        longest = max(state.keys.shape[1] for state in states)
        padded = [state._pad(longest) for state in states]
        if any(state.positions is not None for state in padded):
            padded = [cls(x.keys, x.values, x.count, x.written_positions()) for x in padded]
        return super().join(padded)

    def _pad(self, num_places: int) -> Self:
        missing = num_places - self.keys.shape[1]
        if missing == 0:
            return self
        keys, values = (pad(x, (0, 0, 0, 0, missing, 0)) for x in (self.keys, self.values))
        return type(self)(keys, values, self.count, pad(self.written_positions(), (missing, 0), value=-1))
