"""The state of kernel attention: what a sequence leaves behind, of a size that does not depend on its length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils import _pytree

from rebased.kernels import FeatureMap, Kernel, check_kernel
from rebased.ops.dtypes import no_autocast
from rebased.ops.exact_sums import add_exactly, no_residual

__all__ = ["KernelState", "initial_state"]

MAX_FEATURES = 1 << 17
"""The most that a polynomial may have: for values of size 64 its state then takes 34 MB a head."""
_TENSORS = ("values", "normalizer", "count", "values_residual", "normalizer_residual")


@dataclass(frozen=True, eq=False, repr=False)
class KernelState:
    """Sums over the keys seen so far: ``values = Σ φ(k) vᵀ``, ``normalizer = Σ φ(k)``, and their ``count``.

    float32 whatever the inputs were (float64 for float64). A million additions one after another would still lose the
    small ones, so float32 sums carry a bfloat16 residual: what rounding has dropped so far, added with the next
    token. Differentiable in ``values`` and ``normalizer``; a pytree, so that it passes through torch.vmap,
    torch.compile and torch.export.
    """

    values: Float[Tensor, "B Hk E D"]
    normalizer: Float[Tensor, "B Hk E"]
    count: Int[Tensor, " B"]
    kernel: str
    """The name of the kernel whose features were summed; only kernels of that name take this state."""
    values_residual: Float[Tensor, "B Hk E D"] | None = None
    normalizer_residual: Float[Tensor, "B Hk E"] | None = None

    @classmethod
    def of_sums(
        cls, kernel: str, values: Float[Tensor, "B Hk E D"], normalizer: Float[Tensor, "B Hk E"], count: Tensor
    ) -> "KernelState":
        """The state of a sequence's first tokens, given the sums over them."""
        return cls(values, normalizer, count, kernel, no_residual(values), no_residual(normalizer))

    def plus(
        self,
        values: Float[Tensor, "B Hk E D"],
        normalizer: Float[Tensor, "B Hk E"],
        count: Int[Tensor, " B"],
        *,
        inplace: bool = False,
    ) -> "KernelState":
        """With the sums over further tokens added; ``inplace`` writes this state's own tensors."""
        with_values = add_exactly(self.values, self.values_residual, values, inplace=inplace)
        with_normalizer = add_exactly(self.normalizer, self.normalizer_residual, normalizer, inplace=inplace)
        if inplace:
            self.count.add_(count)
            return self
        new_values, values_residual = with_values
        new_normalizer, normalizer_residual = with_normalizer
        return KernelState(
            new_values, new_normalizer, self.count + count, self.kernel, values_residual, normalizer_residual
        )

    def __repr__(self) -> str:
        shape, dtype, device = tuple(self.values.shape), self.values.dtype, self.values.device
        return f"KernelState({self.kernel!r}, values={shape}, {dtype}, device={str(device)!r}, {self.nbytes} bytes)"

    @property
    def batch_size(self) -> int:
        return self.values.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self._tensors().values())

    def to(self, device: torch.device | str) -> "KernelState":
        check_device(device)
        return self._map(lambda x: x.to(device))

    def detach(self) -> "KernelState":
        return self._map(Tensor.detach)

    def clone(self) -> "KernelState":
        return self._map(Tensor.clone)

    def reorder(self, index: Int[Tensor, " N"]) -> "KernelState":
        """The states of sequences ``index``, in that order and as often as named: what a beam search needs."""
        return self._map(lambda x: x.index_select(0, index))

    @classmethod
    def join(cls, states: Sequence["KernelState"]) -> "KernelState":
        """The states of several batches as those of one."""
        names = states[0]._tensors()
        joined = {name: torch.cat([state._tensors()[name] for state in states]) for name in names}
        return cls(kernel=states[0].kernel, **joined)

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file; needs ``pip install safetensors``."""
        tensors = {name: x.detach().contiguous() for name, x in self._tensors().items()}
        _safetensors().torch.save_file(tensors, path, metadata={"kernel": self.kernel})

    @classmethod
    def load(cls, path: str | Path, *, device: torch.device | str = "cpu") -> "KernelState":
        """Read what `save` wrote. ValueError for a file that holds something else."""
        safetensors = _safetensors()
        try:
            opened = safetensors.safe_open(path, framework="pt", device=str(device))
        except safetensors.SafetensorError as error:
            raise ValueError(f"path={str(path)!r} is not a safetensors file: {error}") from error
        with opened as file:
            kernel, names = (file.metadata() or {}).get("kernel"), set(file.keys())
            if kernel is None or not {"values", "normalizer", "count"} <= names <= set(_TENSORS):
                raise ValueError(f"path={str(path)!r} holds {sorted(names)}, not a kernel attention state")
            return cls(**{name: file.get_tensor(name) for name in names}, kernel=kernel)

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Values, normaliser, count and the two residuals, where there are."""
        return tuple(getattr(self, name) for name in _TENSORS)

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in _TENSORS if getattr(self, name) is not None}

    def _map(self, function: Callable[[Tensor], Tensor]) -> "KernelState":
        return KernelState(kernel=self.kernel, **{name: function(x) for name, x in self._tensors().items()})


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
    check_kernel(kernel)
    check_sizes(batch_size, num_heads=num_heads, feature_dim=feature_dim, head_dim=head_dim)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype={dtype} must be torch.float32 or torch.float64: sums are not kept in less")
    E = count_features(kernel, feature_dim, dtype=dtype, device=device)
    return KernelState.of_sums(
        kernel.name,
        torch.zeros(batch_size, num_heads, E, head_dim, device=device, dtype=dtype),
        torch.zeros(batch_size, num_heads, E, device=device, dtype=dtype),
        torch.zeros(batch_size, device=device, dtype=torch.int64),
    )


def count_features(kernel: Kernel, feature_dim: int, *, dtype: torch.dtype, device: torch.device | str | None) -> int:
    """E. A feature map is tried out where it will be used: it may hold weights of one dtype on one device.

    ValueError if a polynomial has more features than anyone would want to sum.
    """
    if type(kernel).num_features is FeatureMap.num_features:
        probe = torch.zeros(1, 1, 1, feature_dim, dtype=dtype, device=device)
        with no_autocast(probe):
            return kernel.key_features(probe).shape[-1]
    E = kernel.num_features(feature_dim)
    if E > MAX_FEATURES:
        raise ValueError(
            f"feature_dim={feature_dim} gives {E} {kernel.name}, more than the {MAX_FEATURES} a state may hold; "
            "use a smaller feature_dim or degree, or backend='reference' without a state"
        )
    return E


def check_sizes(batch_size: int, **sizes: int) -> None:
    """Of a state; a batch may be of none. What torch traces has symbols for sizes, which are no integers to Python."""
    for name, size, least in (("batch_size", batch_size, 0), *((name, size, 1) for name, size in sizes.items())):
        if isinstance(size, float):
            raise TypeError(f"{name} is {size}; it must be an integer")
        if size < least:
            raise ValueError(f"{name}={size} must be at least {least}")


def check_device(device: object) -> None:
    """TypeError for a dtype: a count, say, would not survive in another one."""
    if isinstance(device, torch.dtype):
        raise TypeError(f"device is {device}; a state's dtypes are what they are")


def _key(name: str) -> str:
    """A name that does not begin with another one: torch.export replaces names in code as text (torch 2.13)."""
    return f"residual_of_{name.removesuffix('_residual')}" if name.endswith("_residual") else name


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("saving and loading a state needs safetensors: pip install safetensors") from error
    return safetensors


_pytree.register_pytree_node(
    KernelState,
    # Only the tensors that are there: torch.vmap refuses None among what a function returns.
    lambda state: (list(state._tensors().values()), (state.kernel, *state._tensors())),
    lambda tensors, context: KernelState(kernel=context[0], **dict(zip(context[1:], tensors, strict=True))),
    serialized_type_name="rebased.ops.state.KernelState",
    to_dumpable_context=list,
    from_dumpable_context=tuple,
    flatten_with_keys_fn=lambda state: (
        [(_pytree.GetAttrKey(_key(name)), x) for name, x in state._tensors().items()],
        (state.kernel, *state._tensors()),
    ),
)
