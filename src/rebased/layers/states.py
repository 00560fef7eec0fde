"""What a mixer remembers of a sequence: tensors whose first axis is the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils import _pytree

from rebased.ops.state import check_device

__all__ = ["MixerState", "State"]


class State(Protocol):
    """What every state can do; `rebased.ops.KernelState` is one too."""

    @property
    def batch_size(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def to(self, device: torch.device | str) -> Self: ...
    def detach(self) -> Self: ...
    def reorder(self, index: Int[Tensor, " N"]) -> Self: ...
    @classmethod
    def join(cls, states: Sequence[Self]) -> Self: ...


@dataclass(frozen=True, eq=False)
class MixerState:
    """A frozen dataclass of tensors with the batch first. Subclasses are registered as pytrees."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name = f"{cls.__module__}.{cls.__qualname__}"
        _pytree.register_pytree_node(
            cls,
            lambda state: (list(state.tensors().values()), list(state.tensors())),
            lambda tensors, names: cls(**dict(zip(names, tensors, strict=True))),
            serialized_type_name=name,
            to_dumpable_context=list,
            from_dumpable_context=list,
            flatten_with_keys_fn=lambda state: (
                [(_pytree.GetAttrKey(key), x) for key, x in state.tensors().items()],
                list(state.tensors()),
            ),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Those that are there: a field may be None."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in named.items() if x is not None}

    @property
    def batch_size(self) -> int:
        return next(iter(self.tensors().values())).shape[0]

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.tensors().values())

    def to(self, device: torch.device | str) -> Self:
        check_device(device)
        return self._map(lambda x: x.to(device))

    def detach(self) -> Self:
        return self._map(Tensor.detach)

    def reorder(self, index: Int[Tensor, " N"]) -> Self:
        """The states of sequences ``index``, in that order and as often as named: what a beam search needs."""
        return self._map(lambda x: x.index_select(0, index))

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """The states of several batches as those of one."""
        names = states[0].tensors()
        return cls(**{name: torch.cat([state.tensors()[name] for state in states]) for name in names})

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(**{name: function(x) for name, x in self.tensors().items()})
