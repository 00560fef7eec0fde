"""Long convolutions by FFT against the sums that define them, with gradients and under vmap."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rebased.ops.long_conv import _fft_length, long_conv
from tolerances import relative_rms
from transform_cases import assert_same, looped, randn, with_grads

sizes = st.integers(1, 40)


def by_hand(inputs: Tensor, filters: Tensor, num_outputs: int) -> Tensor:
    """One product at a time."""
    S, L = inputs.shape[1], filters.shape[0]
    outputs = [sum(filters[j] * inputs[:, t - j] for j in range(min(L, t + 1))) for t in range(S - num_outputs, S)]
    return torch.stack(outputs, dim=1)


@given(num_inputs=sizes, num_taps=sizes, data=st.data())
@settings(max_examples=30)
def test_matches_the_sums(num_inputs: int, num_taps: int, data: st.DataObject) -> None:
    """Of more or fewer taps than inputs, at all positions or the last ones, with gradients."""
    num_outputs = data.draw(st.integers(1, num_inputs), label="num_outputs")
    inputs, filters = randn(2, num_inputs, 3), randn(num_taps, 3, seed=1)
    expected = with_grads(lambda *xs: by_hand(*xs, num_outputs), inputs, filters)
    assert_same(with_grads(lambda *xs: long_conv(*xs, num_outputs), inputs, filters), expected)
    if num_outputs == num_inputs:
        assert_same(with_grads(long_conv, inputs, filters), expected)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 1), (2, 0)])
@pytest.mark.parametrize("num_outputs", [1, 4])
def test_vmap(in_dims: tuple[int | None, int | None], num_outputs: int) -> None:
    inputs, filters = randn(2, 9, 3), randn(9, 3, seed=1)
    mapped = [
        x if dim is None else torch.stack([x, 2 * x, 1 - x], dim=dim)
        for x, dim in zip((inputs, filters), in_dims, strict=True)
    ]

    def run(u: Tensor, h: Tensor) -> Tensor:
        return long_conv(u, h, num_outputs)

    expected = with_grads(lambda *xs: looped(run, in_dims, *xs), *mapped)
    assert_same(with_grads(torch.vmap(run, in_dims), *mapped), expected)
    gradient = torch.func.grad(lambda *xs: run(*xs).sin().sum(), argnums=(0, 1))
    assert_same(torch.vmap(gradient, in_dims)(*mapped), looped(gradient, in_dims, *mapped))


@pytest.mark.parametrize("in_dims", [((0, 0), (0, 0)), ((0, None), (None, 0)), ((1, None), (0, 1))])
def test_nested_vmap(in_dims: tuple[tuple[int | None, int | None], ...]) -> None:
    outer, inner = in_dims
    inputs, filters = randn(2, 9, 3), randn(9, 3, seed=1)
    for dims in (inner, outer):
        inputs, filters = (
            x if dim is None else torch.stack([x, 2 * x, 1 - x], dim=dim)
            for x, dim in zip((inputs, filters), dims, strict=True)
        )
    expected = with_grads(lambda *xs: looped(lambda *ys: looped(long_conv, inner, *ys), outer, *xs), inputs, filters)
    assert_same(with_grads(torch.vmap(torch.vmap(long_conv, inner), outer), inputs, filters), expected)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)], ids=str)
def test_no_replicas(in_dims: tuple[int | None, int | None]) -> None:
    """There is no Fourier transform of nothing."""
    inputs = [
        randn(*(() if dim is None else (0,)), *shape) for shape, dim in zip(((2, 9, 3), (9, 3)), in_dims, strict=True)
    ]
    gradient = torch.func.grad(lambda *xs: long_conv(*xs).sin().sum(), (0, 1))
    assert [tuple(x.shape) for x in torch.vmap(gradient, in_dims)(*inputs)] == [(0, 2, 9, 3), (0, 9, 3)]


def test_opcheck() -> None:
    """Schemas, fake tensors, strides and registration of both operators, with groups."""
    inputs, filters = randn(2, 3, 4, 10), randn(2, 4, 10, seed=1)
    leaves = inputs.clone().requires_grad_(), filters.clone().requires_grad_()
    torch.library.opcheck(torch.ops.rebased.circular_conv.default, leaves)
    torch.library.opcheck(torch.ops.rebased.circular_conv_backward.default, (randn(*inputs.shape), inputs, filters))


@pytest.mark.usefixtures("_forget_compilations")
def test_compiled_with_its_gradients() -> None:
    """In one graph, in which operators do not see conjugations that are put off, and for any number of replicas."""

    def grads(inputs: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.grad(lambda *xs: torch.vmap(long_conv)(*xs).square().sum(), (0, 1))(inputs, filters)

    compiled = torch.compile(grads, fullgraph=True, backend="aot_eager")
    for num_replicas in (2, 3, 5):
        inputs, filters = randn(num_replicas, 2, 9, 3), randn(num_replicas, 9, 3, seed=1)
        assert_same(compiled(inputs, filters), grads(inputs, filters))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sums_are_float32_at_least(dtype: torch.dtype) -> None:
    inputs, filters = randn(2, 300, 3).to(dtype), randn(300, 3, seed=1).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = long_conv(inputs, filters)
    assert actual.dtype == torch.float32
    assert relative_rms(actual, by_hand(inputs.double(), filters.double(), 300)) < 1e-6


def test_compiled_graphs_see_no_complex_numbers() -> None:
    """Inductor would warn of them."""
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        seen.extend(node.meta["example_value"] for node in graph.graph.nodes if "example_value" in node.meta)
        return graph

    torch._dynamo.reset()
    inputs, filters = randn(2, 9, 3), randn(9, 3, seed=1)
    assert_same(torch.compile(long_conv, fullgraph=True, backend=backend)(inputs, filters), long_conv(inputs, filters))
    assert seen
    assert not any(x.is_complex() for x in seen if isinstance(x, Tensor))


@given(num_inputs=st.integers(1, 5000), num_taps=st.integers(1, 5000), num_outputs=st.integers(1, 5000))
def test_fft_lengths_are_fast(num_inputs: int, num_taps: int, num_outputs: int) -> None:
    """Long enough, of small factors, and less than a third longer than need be."""
    length = _fft_length(num_inputs, num_taps, num_outputs)
    needed = max(num_inputs, num_taps + num_outputs - 1)
    assert needed <= length <= needed * 4 / 3
    for factor in (2, 3, 5):
        while length % factor == 0:
            length //= factor
    assert length == 1
