"""What the tests of torch's transforms share: kernels, calls with every option, runs with gradients, comparison.

Everything is float64 and small. The expected side is always the reference backend in plain eager autograd, with no
transform in sight; where a transform maps over replicas, it is a Python loop (`looped`).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from rebased.kernels import BASED, DPFP, ELU_PLUS_ONE, REBASED, RFA, CosFormer, Kernel, Polynomial, Power
from rebased.ops import kernel_attention
from tolerances import RELATIVE_RMS, relative_rms

KERNELS: dict[str, Kernel] = {
    "rebased": REBASED,
    "based": BASED,
    "power": Power(4),
    "elu+1": ELU_PLUS_ONE,
    "cosformer": CosFormer(256),
    "dpfp": DPFP(2),
    "rfa": RFA(3, 16),
}

OPTIONS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "not causal": ("not causal",),
    "state": ("state",),
    "key_mask": ("key_mask",),
    "at": ("at",),
    "packed": ("packed",),
    "everything": ("state", "key_mask", "at", "packed"),
}
"""Sets of options by name, as `call_arguments` reads them."""

NUM_HEADS, KEY_HEADS, FEATURE_DIM, HEAD_DIM = 4, 2, 3, 5
NUM_QUERIES = 4
"""With `at`."""


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(hash((seed, *shape))))


def learned(c0: Tensor, c1: Tensor, c2: Tensor) -> Polynomial:
    return Polynomial(c0, c1, c2)


def coefficients(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of a polynomial that is never negative: c1² <= 1 <= 4·c0·c2, so no normaliser cancels."""
    draws = (torch.rand(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1) / 2
    return tuple(draws.unbind())


def qkv(options: str = "plain", *, seq_len: int = 7, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values that fit a set of options."""
    batch_size = 1 if "packed" in OPTIONS[options] else 2
    num_queries = NUM_QUERIES if "at" in OPTIONS[options] else seq_len
    q = randn(batch_size, num_queries, NUM_HEADS, FEATURE_DIM, seed=seed)
    k = randn(batch_size, seq_len, KEY_HEADS, FEATURE_DIM, seed=seed + 1)
    return q, k, randn(batch_size, seq_len, KEY_HEADS, HEAD_DIM, seed=seed + 2)


def call_arguments(options: str, kernel: Kernel, *, seq_len: int = 7, seed: int = 0) -> dict[str, Any]:
    """The keyword arguments of one call; another seed gives other masks, positions, borders and states."""
    names = OPTIONS[options]
    packed = "packed" in names
    batch_size, num_sequences = (1, 3) if packed else (2, 2)
    generator = torch.Generator().manual_seed(seed)
    arguments: dict[str, Any] = {}
    if "not causal" in names:
        arguments["causal"] = False
    if "key_mask" in names:
        arguments["key_mask"] = torch.rand(batch_size, seq_len, generator=generator) < 0.7
    if "at" in names:
        arguments["at"] = torch.randint(seq_len, (batch_size, NUM_QUERIES), generator=generator)
    if packed:
        first = int(torch.randint(seq_len, (), generator=generator))
        arguments["cu_seqlens"] = torch.tensor([0, first, first, seq_len])  # the second sequence is empty
    if "state" in names:
        q, k, v = (randn(num_sequences, 6, *x.shape[2:], seed=seed + 10 * i) for i, x in enumerate(qkv(), start=1))
        _, arguments["state"] = kernel_attention(q, k, v, kernel, return_state=True, backend="reference")
    return arguments


def loss_of(result: Any) -> Tensor:
    """A scalar that depends on every number of an output and a state."""
    return torch.stack([x.sin().sum() for x in tensors(result) if x.is_floating_point()]).sum()


def tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def with_grads(function: Callable[..., Any], *inputs: Any) -> tuple[Any, ...]:
    """The result, detached, and the gradients of all floating-point inputs: plain autograd around ``function``."""

    def leaf(x: Any) -> Any:
        return x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x

    inputs = tree_map(leaf, inputs)
    result = function(*inputs)
    leaves = [x for x in tensors(inputs) if x.requires_grad]
    grads = torch.autograd.grad(loss_of(result), leaves)
    return tree_map(Tensor.detach, result), grads


def looped(function: Callable[..., Any], in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
    """What `torch.vmap` computes, by a loop."""
    size = next(
        x.shape[dim] for tree, dim in zip(inputs, in_dims, strict=True) if dim is not None for x in tensors(tree)
    )

    def pick(tree: Any, dim: int | None, index: int) -> Any:
        return tree if dim is None else tree_map(lambda x: x.select(dim, index), tree)

    results = [function(*(pick(x, d, i) for x, d in zip(inputs, in_dims, strict=True))) for i in range(size)]
    return stacked(results)


def stacked(trees: list[Any]) -> Any:
    """Trees of tensors, such as states, as one tree of tensors with a new first axis."""
    return tree_map(lambda *xs: torch.stack(xs), *trees)


def assert_same(actual: Any, expected: Any) -> None:
    """The same tensors in the same order, each within 1e-10 (relative RMS), whatever its dtype; integers exactly."""
    _assert_within(actual, expected, lambda dtype: RELATIVE_RMS[torch.float64])


def assert_alike(actual: Any, expected: Any) -> None:
    """The same, each within the bound of its dtype: for results that are sums in another order."""
    _assert_within(actual, expected, lambda dtype: RELATIVE_RMS[dtype])


def _assert_within(actual: Any, expected: Any, bound: Callable[[torch.dtype], float]) -> None:
    actual, expected = tensors(actual), tensors(expected)
    assert len(actual) == len(expected)
    assert len(actual) > 0
    for index, (have, want) in enumerate(zip(actual, expected, strict=True)):
        assert have.shape == want.shape, f"tensor {index} has shape {tuple(have.shape)}, not {tuple(want.shape)}"
        assert have.dtype == want.dtype, f"tensor {index} has dtype {have.dtype}, not {want.dtype}"
        if want.is_floating_point():
            error = relative_rms(have, want)
            assert error <= bound(want.dtype), f"tensor {index} is off by {error:.1e}"
        else:
            assert torch.equal(have, want), f"tensor {index} is {have.tolist()}, not {want.tolist()}"


def assert_refuses_double_backward(loss: Callable[..., Tensor], x: Tensor, *rest: Tensor) -> None:
    """``loss`` has a gradient by x, and that has none."""
    x.requires_grad_()
    (dx,) = torch.autograd.grad(loss(x, *rest), x, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated"):
        dx.sum().backward()


def saved_by(function: Callable[[], object]) -> list[Tensor]:
    """What autograd keeps for the way back of what ``function`` does."""
    saved: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        function()
    return saved
