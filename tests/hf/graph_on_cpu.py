"""What a CUDA graph does, on a CPU: operations are noted once, and done again to the same memory without Python."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from rebased.replay import WARMUP_CALLS

Operation = tuple[Callable[..., Any], Any, dict[str, Any], Any]


class _Notes(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        if "checked_" in str(function):  # nobody looks at numbers in a graph: what is left of it is a copy
            function, args, kwargs = torch.ops.aten.clone.default, args[:1], {}
        # By their memory: a parameter may be given other data, and a graph does not notice.
        self.operations.append((function, _pytree.tree_map_only(Tensor, Tensor.detach, args), kwargs or {}, result))
        return result


class GraphOnCpu:
    """Takes the place of `rebased.replay.Replay`."""

    num_recorded = 0
    num_replayed = 0

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        type(self).num_recorded += 1
        for _ in range(WARMUP_CALLS):
            function()
        with _Notes() as notes:
            function()
        self._operations = notes.operations

    @torch.no_grad()
    def __call__(self) -> None:
        type(self).num_replayed += 1
        with torch.autocast("cpu", enabled=False):  # what was cast then is cast now, and nothing else
            for function, args, kwargs, results in self._operations:
                again = function(*args, **kwargs)
                for old, new in zip(_pytree.tree_leaves(results), _pytree.tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        _writable(old).copy_(_writable(new))


def _writable(x: Tensor) -> Tensor:
    """Without the repetitions of an expanded axis."""
    sizes = [1 if stride == 0 else size for size, stride in zip(x.shape, x.stride(), strict=True)]
    return x.detach().as_strided(sizes, x.stride())
