"""What a model remembers of a sequence: the states of its layers, and how many tokens it has seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils import _pytree

from rebased.ops.state import check_device

__all__ = ["ModelState"]


@dataclass(frozen=True, eq=False)
class ModelState:
    """Of a batch of sequences, with the methods that a mixer's states have; a pytree."""

    layers: tuple[Any, ...]
    """What each layer's mixer remembers."""
    count: Int[Tensor, " B"]
    """Real tokens so far."""

    @property
    def batch_size(self) -> int:
        return self.count.shape[0]

    @property
    def nbytes(self) -> int:
        """Of all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def to(self, device: torch.device | str) -> "ModelState":
        check_device(device)
        return ModelState(tuple(layer.to(device) for layer in self.layers), self.count.to(device))

    def detach(self) -> "ModelState":
        return ModelState(tuple(layer.detach() for layer in self.layers), self.count)

    def reorder(self, index: Int[Tensor, " N"]) -> "ModelState":
        """The states of sequences ``index``, in that order and as often as named: what a beam search needs."""
        return ModelState(tuple(layer.reorder(index) for layer in self.layers), self.count.index_select(0, index))

    @classmethod
    def join(cls, states: Sequence["ModelState"]) -> "ModelState":
        """The states of several batches as those of one."""
        columns = zip(*(state.layers for state in states), strict=True)
        return cls(
            tuple(type(column[0]).join(column) for column in columns), torch.cat([state.count for state in states])
        )


def _from_list(children: list[Any]) -> ModelState:
    *layers, count = children
    return ModelState(tuple(layers), count)


_pytree.register_pytree_node(
    ModelState,
    lambda state: ([*state.layers, state.count], None),
    lambda children, _: _from_list(list(children)),
    serialized_type_name="rebased.models.state.ModelState",
    flatten_with_keys_fn=lambda state: (
        [
            *((_pytree.GetAttrKey(f"layer{index}"), layer) for index, layer in enumerate(state.layers)),
            (_pytree.GetAttrKey("count"), state.count),
        ],
        None,
    ),
)
