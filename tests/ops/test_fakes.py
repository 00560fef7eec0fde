"""What the Triton backends return has the shapes, dtypes and strides that the operators' fakes promise to compilers.

Compiled code takes strides for granted. On a CPU nothing shows whether they are right: there "auto" compiles the torch
backend. So every operator that a call reaches is asked twice here, with real tensors in Triton's interpreter (or on a
GPU) and with fake ones.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from rebased.ops import kernel_attention, linear_cross_entropy, norm_affine, selective_scan, wkv
from rebased.ops.conv_silu import conv_silu
from rebased.ops.embedding import embedding
from rebased.ops.long_conv import long_conv
from scan_cases import DEVICE
from transform_cases import loss_of, tensors, with_grads

Inputs = tuple[Tensor, ...]
REPLICAS = 3


class Comparison(TorchDispatchMode):
    """Calls each of our operators once more with fake tensors, and compares what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "rebased":
            with FakeTensorMode() as mode:
                promised = func(*tree_map_only(Tensor, mode.from_tensor, args), **(kwargs or {}))
            assert list(map(described, tensors(result))) == list(map(described, tensors(promised))), func
            self.seen.add(func.name().removeprefix("rebased::"))
        return result


def described(x: Tensor) -> tuple[Any, ...]:
    """With strides as compiled code compares them: those of axes of one number do not count."""
    return x.dtype, x.shape, [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def normal(*shape: int) -> Tensor:
    return torch.randn(REPLICAS, *shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def below(limit: int, *shape: int) -> Tensor:
    return torch.randint(limit, (REPLICAS, *shape), generator=torch.Generator().manual_seed(0)).to(DEVICE)


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], Inputs]]] = {
    "conv_silu": (
        lambda x, weight, bias: conv_silu(x, weight, bias, backend="triton"),
        lambda: (normal(2, 5, 4), normal(4, 3), normal(4)),
    ),
    "selective_scan": (
        lambda x, dt, A, b, c, state: selective_scan(
            x, dt.abs(), -A.abs(), b, c, state=state, return_state=True, backend="triton"
        ),
        lambda: (normal(2, 5, 4), normal(2, 5, 4), normal(4, 3), normal(2, 5, 3), normal(2, 5, 3), normal(2, 4, 3)),
    ),
    "wkv": (
        lambda k, v, decay, bonus: wkv(k, v, decay.abs(), bonus, return_state=True, backend="triton"),
        lambda: (normal(2, 5, 4), normal(2, 5, 4), normal(4), normal(4)),
    ),
    "norm_affine": (
        lambda x, weight, bias: norm_affine(x, weight, bias, backend="triton"),
        lambda: (normal(2, 5, 4), normal(4), normal(4)),
    ),
    "linear_cross_entropy": (
        lambda x, weight, labels: linear_cross_entropy(x, weight, labels, backend="triton"),
        lambda: (normal(6, 16), normal(20, 16), below(20, 6)),
    ),
    "attend": (
        lambda q, k, v: kernel_attention(q, k, v, backend="triton"),
        lambda: (normal(2, 5, 2, 3), normal(2, 5, 2, 3), normal(2, 5, 2, 4)),
    ),
    # These have no Triton kernels, but promise as much.
    "circular_conv": (long_conv, lambda: (normal(2, 5, 4), normal(5, 4))),
    "embedding_zeros": (embedding, lambda: (normal(7, 4), below(7, 2, 5))),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "replicas last": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "axes reversed": lambda x: x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CALLS)
def test_strides_of_stacked_replicas(name: str, layout: str) -> None:
    """As they are trained, with autograd around vmap or inside.

    The gradient of conv_silu's bias was once a view into a larger tensor, which only several groups show: compiled
    training failed on a GPU, while all tests on a CPU passed.
    """
    function, draw = CALLS[name]
    inputs = [LAYOUTS[layout](x) for x in draw()]
    floats = tuple(i for i, x in enumerate(inputs) if x.is_floating_point())
    with Comparison() as comparison:
        with_grads(vmap(function), *inputs)
        vmap(grad(lambda *inputs: loss_of(function(*inputs)), argnums=floats))(*inputs)
    assert name in comparison.seen
    assert any(seen.endswith(("_backward", "_grad")) for seen in comparison.seen)


@pytest.mark.parametrize("name", CALLS)
def test_strides_with_shared_inputs(name: str) -> None:
    """Replicas that see the same batch, each with parameters of its own: what is shared arrives expanded."""
    function, draw = CALLS[name]
    first, *others = draw()
    with Comparison() as comparison:
        if name == "embedding_zeros":
            with_grads(vmap(function, in_dims=(0, None)), first, others[0][0])
        else:
            with_grads(vmap(function, in_dims=(None, *(0 for _ in others))), first[0], *others)
    assert name in comparison.seen
