"""The state of kernel attention: what a sequence leaves behind, of a size that does not depend on its length."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import _pytree

from rebased.kernels import Kernel

__all__ = ["KernelState", "initial_state"]


@dataclass(frozen=True, eq=False)
class KernelState:
    """Sums over the keys seen so far: ``values = Σ φ(k) vᵀ``, ``normalizer = Σ φ(k)``, and their ``count``.

    float32 whatever the inputs were (float64 for float64): long sums do not fit in 8 significant bits. Differentiable;
    a pytree, so that it passes through torch.vmap, torch.compile and torch.export.
    """

    values: Float[Tensor, "B Hk E D"]
    normalizer: Float[Tensor, "B Hk E"]
    count: Int[Tensor, " B"]
    kernel: str
    """The name of the kernel whose features were summed; no other kernel takes this state."""

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.values, self.normalizer, self.count))

    def to(self, device: torch.device | str) -> "KernelState":
        return self._map(lambda t: t.to(device))

    def detach(self) -> "KernelState":
        return self._map(torch.Tensor.detach)

    def clone(self) -> "KernelState":
        return self._map(torch.Tensor.clone)

    def reorder(self, index: Int[Tensor, " N"]) -> "KernelState":
        """The states of sequences ``index``, in that order and as often as named: what a beam search needs."""
        return self._map(lambda t: t.index_select(0, index))

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file; needs ``pip install 'rebased[safetensors]'``."""
        tensors = {name: getattr(self, name).detach().contiguous() for name in _TENSORS}
        _safetensors().torch.save_file(tensors, path, metadata={"kernel": self.kernel})

    @classmethod
    def load(cls, path: str | Path, *, device: torch.device | str = "cpu") -> "KernelState":
        """Read what `save` wrote. ValueError for a file that holds something else."""
        with _safetensors().safe_open(path, framework="pt", device=str(device)) as file:
            kernel = (file.metadata() or {}).get("kernel")
            if kernel is None or set(file.keys()) != set(_TENSORS):
                raise ValueError(f"path={str(path)!r} holds {sorted(file.keys())}, not a kernel attention state")
            return cls(**{name: file.get_tensor(name) for name in _TENSORS}, kernel=kernel)

    def _map(self, function: Any) -> "KernelState":
        return KernelState(*(function(getattr(self, name)) for name in _TENSORS), kernel=self.kernel)


_TENSORS = tuple(field.name for field in fields(KernelState) if field.name != "kernel")


def initial_state(
    kernel: Kernel,
    batch_size: int,
    num_heads: int,
    feature_dim: int,
    head_dim: int,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> KernelState:
    """The state before the first token. ``num_heads`` counts key heads; ``dtype`` is float32 or float64."""
    for name, size in (("batch_size", batch_size), ("num_heads", num_heads), ("head_dim", head_dim)):
        if size < 0 or (name != "batch_size" and size == 0):
            raise ValueError(f"{name}={size} must be positive")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype={dtype} must be torch.float32 or torch.float64: sums are not kept in less")
    E = kernel.num_features(feature_dim)
    return KernelState(
        values=torch.zeros(batch_size, num_heads, E, head_dim, device=device, dtype=dtype),
        normalizer=torch.zeros(batch_size, num_heads, E, device=device, dtype=dtype),
        count=torch.zeros(batch_size, device=device, dtype=torch.int64),
        kernel=kernel.name,
    )


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("saving and loading a state needs safetensors: pip install 'rebased[safetensors]'") from error
    return safetensors


_pytree.register_pytree_node(
    KernelState,
    lambda state: ([state.values, state.normalizer, state.count], state.kernel),
    lambda tensors, kernel: KernelState(*tensors, kernel=kernel),
    serialized_type_name="rebased.ops.state.KernelState",
)
