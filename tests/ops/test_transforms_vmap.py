"""torch.vmap over every tensor argument, in any nesting with torch.func.grad, against a Python loop."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from rebased.kernels import BASED, REBASED, CosFormer
from rebased.ops import KernelState, attention_matrix, kernel_attention, kernel_attention_step
from transform_cases import (
    FEATURE_DIM,
    HEAD_DIM,
    KERNELS,
    KEY_HEADS,
    NUM_HEADS,
    OPTIONS,
    assert_same,
    call_arguments,
    coefficients,
    learned,
    looped,
    loss_of,
    qkv,
    randn,
    stacked,
    with_grads,
)

SIZE = 3
"""Of the mapped axis: unlike any other."""

Dims = tuple[int | None, ...]


def mapped_inputs(dims: Dims, options: str = "plain", *, seq_len: int = 7) -> list[Tensor]:
    """q, k and v with a new axis of different entries at each given place, or none."""
    replicas = [qkv(options, seq_len=seq_len, seed=10 * i) for i in range(SIZE)]
    return [xs[0] if dim is None else torch.stack(xs, dim) for dim, *xs in zip(dims, *replicas, strict=True)]


def assert_mapped_as_looped(run: Any, in_dims: Dims, inputs: list[Any], *, wrt: tuple[int, ...] = (0, 1, 2)) -> None:
    """Values, vmap(grad) and grad(vmap) of ``run(*inputs, backend=…)``, chunked mapped against reference looped."""
    by_chunks, by_reference = partial(run, backend="chunked"), partial(run, backend="reference")
    assert_same(vmap(by_chunks, in_dims)(*inputs), looped(by_reference, in_dims, *inputs))

    def loss(*inputs: Any, backend: str) -> Tensor:
        return loss_of(run(*inputs, backend=backend))

    def looped_grad(*inputs: Any) -> Any:
        leaves = [x.detach().requires_grad_() if i in wrt else x for i, x in enumerate(inputs)]
        return torch.autograd.grad(loss(*leaves, backend="reference"), [leaves[i] for i in wrt])

    mapped_grad = vmap(grad(partial(loss, backend="chunked"), argnums=wrt), in_dims)
    assert_same(mapped_grad(*inputs), looped(looped_grad, in_dims, *inputs))

    def total(*inputs: Any) -> Tensor:
        return vmap(partial(loss, backend="chunked"), in_dims)(*inputs).sum()

    leaves = [x.detach().clone().requires_grad_() if i in wrt else x for i, x in enumerate(inputs)]
    looped(partial(loss, backend="reference"), in_dims, *leaves).sum().backward()
    expected = [leaves[i].grad for i in wrt]
    assert_same(grad(total, argnums=wrt)(*inputs), expected)


@pytest.mark.parametrize(
    "dims", [(0, 0, 0), (4, 2, 1), (0, None, None), (None, 1, None), (None, None, 4), (3, None, 0)]
)
@pytest.mark.parametrize("seq_len", [7, 70])  # within a chunk, and across two
def test_queries_keys_values(dims: Dims, seq_len: int) -> None:
    """Mapped at any axis, or not at all."""

    def run(q: Tensor, k: Tensor, v: Tensor, *, backend: str) -> Any:
        return kernel_attention(q, k, v, BASED, return_state=True, backend=backend)

    assert_mapped_as_looped(run, dims, mapped_inputs(dims, seq_len=seq_len))


@pytest.mark.parametrize("mapped", ["all", "options", "inputs"])
@pytest.mark.parametrize("options", ["key_mask", "at", "packed", "state", "everything"])
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_options(kernel_name: str, options: str, mapped: str) -> None:
    """Masks, positions, borders and states are mapped with the inputs, or only they, or only the inputs."""
    kernel = KERNELS[kernel_name]
    replicas = [call_arguments(options, kernel, seed=i) for i in range(SIZE)]
    names = list(replicas[0])
    values = [replicas[0][n] if mapped == "inputs" else stacked([r[n] for r in replicas]) for n in names]
    dims: Dims = (None, None, None) if mapped == "options" else (0, None, 2)
    option_dims: Dims = (None if mapped == "inputs" else 0,) * len(names)

    def run(q: Tensor, k: Tensor, v: Tensor, *values: Any, backend: str) -> Any:
        arguments = dict(zip(names, values, strict=True))
        return kernel_attention(q, k, v, kernel, return_state=True, backend=backend, **arguments)

    assert_mapped_as_looped(run, (*dims, *option_dims), [*mapped_inputs(dims, options), *values])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("per_head", [False, True])
def test_stacked_coefficients(options: str, per_head: bool) -> None:
    """One set of learnable coefficients per replica, as `torch.func.stack_module_state` makes them."""
    dims: Dims = (None, 0, None)
    cs = coefficients(*((SIZE, NUM_HEADS) if per_head else (SIZE,)))
    arguments = call_arguments(options, BASED)

    def run(q: Tensor, k: Tensor, v: Tensor, c0: Tensor, c1: Tensor, c2: Tensor, *, backend: str) -> Any:
        return kernel_attention(q, k, v, learned(c0, c1, c2), return_state=True, backend=backend, **arguments)

    inputs = [*mapped_inputs(dims, options), *cs]
    assert_mapped_as_looped(run, (*dims, 0, 0, 0), inputs, wrt=(0, 1, 2, 3, 4, 5))


def test_gradients_of_a_mapped_state() -> None:
    """The state's sums are inputs like any other."""
    q, k, v = qkv()
    states = stacked([call_arguments("state", BASED, seed=i)["state"] for i in range(SIZE)])

    def run(values: Tensor, normalizer: Tensor, count: Tensor, *, backend: str) -> Any:
        state = KernelState(values, normalizer, count, kernel=BASED.name)
        return kernel_attention(q, k, v, BASED, state=state, return_state=True, backend=backend)

    assert_mapped_as_looped(run, (0, 0, 0), [states.values, states.normalizer, states.count], wrt=(0, 1))


@pytest.mark.parametrize("options", ["plain", "packed"])
def test_nested(options: str) -> None:
    """vmap(vmap), each over something else."""
    q, k, v = qkv(options)
    arguments = call_arguments(options, BASED)
    q, k, v = q * randn(SIZE, 2, 1, 1, 1, 1), k * randn(2, 1, 1, 1, 1), v[..., None] * randn(SIZE)
    v = v.movedim(-1, 2)

    def run(q: Tensor, k: Tensor, v: Tensor, *, backend: str = "chunked") -> Any:
        return kernel_attention(q, k, v, BASED, return_state=True, backend=backend, **arguments)

    inner, outer = (0, 0, None), (0, None, 2)
    expected = looped(partial(looped, partial(run, backend="reference"), inner), outer, q, k, v)
    assert_same(vmap(vmap(run, inner), outer)(q, k, v), expected)
    grads = grad(lambda *x: loss_of(vmap(vmap(run, inner), outer)(*x)), argnums=(0, 1, 2))(q, k, v)
    by_loops = partial(looped, partial(looped, partial(run, backend="reference"), inner), outer)
    assert_same(grads, with_grads(by_loops, q, k, v)[1])


@pytest.mark.parametrize("return_state", [False, True])
@pytest.mark.parametrize(
    ("size", "batch_size", "seq_len", "packed"),
    [(0, 2, 3, False), (2, 0, 3, False), (2, 2, 0, False), (0, 1, 3, True), (2, 1, 0, True), (0, 1, 0, True)],
)
def test_nothing_to_map(size: int, batch_size: int, seq_len: int, packed: bool, return_state: bool) -> None:
    """Empty axes, the mapped one included, give empty results of the right shape."""
    q = randn(size, batch_size, seq_len, NUM_HEADS, FEATURE_DIM)
    k = randn(size, batch_size, seq_len, KEY_HEADS, FEATURE_DIM)
    v = randn(size, batch_size, seq_len, KEY_HEADS, HEAD_DIM)
    arguments = {"cu_seqlens": torch.tensor([0, 0, seq_len])} if packed else {}

    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return kernel_attention(q, k, v, REBASED, return_state=return_state, backend="chunked", **arguments)

    result = vmap(run)(q, k, v)
    out = result[0] if return_state else result
    assert out.shape == (size, batch_size, seq_len, NUM_HEADS, HEAD_DIM)
    if return_state:
        num_sequences = 2 if packed else batch_size
        assert result[1].values.shape == (size, num_sequences, KEY_HEADS, 6, HEAD_DIM)
        assert result[1].normalizer.shape == (size, num_sequences, KEY_HEADS, 6)
    grads = vmap(grad(lambda *x: loss_of(run(*x)), argnums=(0, 1, 2)))(q, k, v)
    assert [x.shape for x in grads] == [x.shape for x in (q, k, v)]


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_step(kernel_name: str) -> None:
    kernel = KERNELS[kernel_name]
    states = stacked([call_arguments("state", kernel, seed=i)["state"] for i in range(SIZE)])
    q, k, v = (
        randn(SIZE, 2, NUM_HEADS, FEATURE_DIM),
        randn(2, KEY_HEADS, FEATURE_DIM),
        randn(2, SIZE, KEY_HEADS, HEAD_DIM),
    )
    mask = torch.tensor([[True, False], [True, True], [False, False]])

    def run(q: Tensor, k: Tensor, v: Tensor, state: KernelState, mask: Tensor) -> Any:
        return kernel_attention_step(q, k, v, state, kernel, key_mask=mask)

    dims = (0, None, 1, 0, 0)
    assert_same(vmap(run, dims)(q, k, v, states, mask), looped(run, dims, q, k, v, states, mask))


@pytest.mark.parametrize("options", ["plain", "not causal", "key_mask", "at", "packed"])
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_matrix(kernel_name: str, options: str) -> None:
    kernel = KERNELS[kernel_name]
    q, k, _ = mapped_inputs((0, None, None), options)
    run = partial(attention_matrix, kernel=kernel, **call_arguments(options, kernel))
    assert_same(vmap(run, (0, None))(q, k), looped(run, (0, None), q, k))


@pytest.mark.parametrize(("options", "name"), [("at", "at"), ("packed", "cu_seqlens")])
def test_checked_values_mapped_at_the_last_axis(options: str, name: str) -> None:
    inputs = qkv(options)
    values = torch.stack([call_arguments(options, REBASED, seed=i)[name] for i in range(SIZE)], dim=-1)

    def run(values: Tensor) -> Tensor:
        return kernel_attention(*inputs, **{name: values})

    assert_same(vmap(run, -1)(values), looped(run, (-1,), values))


def test_values_are_checked() -> None:
    """One replica's bad position or border is found."""
    q, k, v = qkv("at")
    at = torch.stack([call_arguments("at", REBASED, seed=i)["at"] for i in range(SIZE)])
    at[1, 0, 2] = 7
    with pytest.raises(ValueError, match=r"at reaches from \d to 7"):
        vmap(lambda at: kernel_attention(q, k, v, at=at))(at)
    q, k, v = qkv("packed")
    borders = torch.tensor([[0, 2, 7], [0, 8, 7], [0, 0, 7]])
    with pytest.raises(ValueError, match=r"cu_seqlens.*must not decrease"):
        vmap(lambda borders: kernel_attention(q, k, v, cu_seqlens=borders))(borders)
    q, k, v = mapped_inputs((0, 0, 0), "plain")
    with pytest.raises(ValueError, match="max_len"):
        vmap(partial(kernel_attention, kernel=CosFormer(6)))(q, k, v)
