"""A space of attention problems for hypothesis: kernels, shapes, masks, packings, positions, states."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from rebased.kernels import (
    BASED,
    DPFP,
    ELEMENTWISE_SQUARE,
    ELU_PLUS_ONE,
    REBASED,
    RELU,
    RFA,
    CosFormer,
    Kernel,
    Polynomial,
    Power,
)
from rebased.ops import KernelState, initial_state

KERNELS = (
    "rebased",
    "based",
    "learned",
    "learned per head",
    "linear",
    "power 4",
    "power 6",
    "elu+1",
    "relu",
    "square",
    "cosformer",
    "dpfp",
    "rfa",
)


@dataclass(frozen=True, repr=False)
class Case:
    """One call of kernel_attention, with float64 leaves."""

    kernel: Kernel
    leaves: dict[str, Tensor]
    arguments: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = {name: tuple(x.shape) for name, x in self.leaves.items()}
        arguments = {name: x if isinstance(x, bool | float | None) else "…" for name, x in self.arguments.items()}
        return f"Case({self.kernel}, {shapes}, {arguments})"

    def call(self, function: Any, **extra: Any) -> Any:
        arguments = dict(self.arguments)
        if "state.values" in self.leaves:
            arguments["state"] = replace(
                arguments["state"], values=self.leaves["state.values"], normalizer=self.leaves["state.normalizer"]
            )
        return function(self.leaves["q"], self.leaves["k"], self.leaves["v"], self.kernel, **arguments, **extra)

    def to(self, device: str, dtype: torch.dtype) -> "Case":
        """The same with other leaves; a state's are float32 if not float64."""
        state_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        leaves = {
            name: x.detach().to(device, state_dtype if name.startswith("state") else dtype).requires_grad_()
            for name, x in self.leaves.items()
        }
        arguments = {
            name: x.detach().to(device) if isinstance(x, Tensor | KernelState) else x
            for name, x in self.arguments.items()
        }
        kernel = self.kernel
        if "c0" in leaves:
            kernel = type(kernel)(leaves["c0"], leaves["c1"], leaves["c2"], nonnegative=kernel.nonnegative)
        return replace(self, kernel=kernel, leaves=leaves, arguments=arguments)

    def grad_floor(self, out: Tensor) -> float:
        """‖dL/dy‖·‖y‖ of the functional in `with_gradients`, whose weights have about unit norm."""
        return out.norm().item()


@st.composite
def cases(draw: st.DrawFn, *, max_len: int = 40, max_feature_dim: int = 7, kernels: tuple[str, ...] = KERNELS) -> Case:
    kernel_name = draw(st.sampled_from(kernels))
    batch_size = draw(st.integers(1, 3))
    packed = draw(st.booleans())
    seq_len = draw(st.integers(0, max_len))
    key_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 3), (2, 2)]))
    feature_dim = draw(st.integers(1, 4 if kernel_name.startswith("power") else max_feature_dim))
    head_dim = draw(st.sampled_from([1, 2, 5, 8]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    leaves: dict[str, Tensor] = {}
    arguments: dict[str, Any] = {
        "causal": draw(st.booleans()),
        "normalize": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.7])),
    }
    kernel = make_kernel(kernel_name, key_heads * group, feature_dim, leaves, generator)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    num_sequences = batch_size
    if packed:
        batch_size = 1
        inner = draw(st.lists(st.integers(0, seq_len), max_size=4))
        arguments["cu_seqlens"] = torch.tensor([0, *sorted(inner), seq_len])
        num_sequences = len(inner) + 1
    num_queries = seq_len
    if draw(st.booleans()):
        num_queries = draw(st.integers(0, 6)) if seq_len else 0
        arguments["at"] = torch.randint(0, max(seq_len, 1), (batch_size, num_queries), generator=generator)
    if draw(st.booleans()):
        arguments["key_mask"] = torch.rand(batch_size, seq_len, generator=generator) < draw(
            st.sampled_from([0.0, 0.3, 0.9])
        )
    if draw(st.booleans()):
        state = random_state(kernel, num_sequences, key_heads, feature_dim, head_dim, generator)
        arguments["state"] = state
        leaves["state.values"] = state.values.requires_grad_()
        leaves["state.normalizer"] = state.normalizer.requires_grad_()
    leaves["q"] = leaf(batch_size, num_queries, key_heads * group, feature_dim)
    leaves["k"] = leaf(batch_size, seq_len, key_heads, feature_dim)
    leaves["v"] = leaf(batch_size, seq_len, key_heads, head_dim)
    return Case(kernel, leaves, arguments)


def make_kernel(
    name: str, num_heads: int, feature_dim: int, leaves: dict[str, Tensor], generator: torch.Generator
) -> Kernel:
    """A kernel by its name in KERNELS; learnable coefficients are added to ``leaves``."""
    if name.startswith("learned"):
        shape = (num_heads,) if name == "learned per head" else ()
        for degree in range(3):
            c = torch.randn(shape, dtype=torch.float64, generator=generator)
            leaves[f"c{degree}"] = c.requires_grad_()
        return Polynomial(leaves["c0"], leaves["c1"], leaves["c2"])
    return {
        "rebased": REBASED,
        "based": BASED,
        "linear": Polynomial(0, 1, 0),
        "power 4": Power(4),
        "power 6": Power(6),
        "elu+1": ELU_PLUS_ONE,
        "relu": RELU,
        "square": ELEMENTWISE_SQUARE,
        "cosformer": CosFormer(400),
        "dpfp": DPFP(2),
        "rfa": RFA(feature_dim, 5),
    }[name]


def random_state(
    kernel: Kernel, batch_size: int, num_heads: int, feature_dim: int, head_dim: int, generator: torch.Generator
) -> KernelState:
    """The state of 1 to 20 random tokens, a different number for each sequence."""
    state = initial_state(kernel, batch_size, num_heads, feature_dim, head_dim, dtype=torch.float64)
    count = torch.randint(1, 21, (batch_size,), generator=generator)
    k = torch.randn(batch_size, 20, num_heads, feature_dim, dtype=torch.float64, generator=generator)
    v = torch.randn(batch_size, 20, num_heads, head_dim, dtype=torch.float64, generator=generator)
    positions = torch.arange(20).expand(batch_size, 20)
    features = kernel.key_features(k, positions) * (positions < count[:, None])[..., None, None]
    return replace(state, values=torch.einsum("bshe,bshd->bhed", features, v), normalizer=features.sum(1), count=count)
