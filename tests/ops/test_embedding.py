"""Rows of a table, and their gradient, against torch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rebased.ops.embedding import embedding
from transform_cases import looped


def problem(
    num_rows: int,
    width: int,
    shape: tuple[int, ...],
    zeros: float,
    device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(num_rows, width, dtype=torch.float64, generator=generator)
    indices = torch.randint(0, num_rows, shape, generator=generator)
    indices[torch.rand(shape, generator=generator) < zeros] = 0
    dout = torch.randn(*shape, width, dtype=torch.float64, generator=generator)
    return table.to(device, dtype).requires_grad_(), indices.to(device), dout.to(device, dtype)


@given(
    num_rows=st.integers(1, 30),
    width=st.integers(1, 9),
    shape=st.tuples(st.integers(0, 4), st.integers(0, 9)),
    zeros=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_equals_torch(num_rows: int, width: int, shape: tuple[int, int], zeros: float) -> None:
    table, indices, dout = problem(num_rows, width, shape, zeros)
    out, expected = embedding(table, indices), torch.nn.functional.embedding(indices, table)
    assert torch.equal(out, expected)
    (actual_grad,), (expected_grad,) = (torch.autograd.grad(y, table, dout) for y in (out, expected))
    torch.testing.assert_close(actual_grad, expected_grad)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0)])
def test_no_replicas(in_dims: tuple[int | None, int | None]) -> None:
    tables, indices = torch.randn(0, 3, 4), torch.zeros(0, 3, 5, dtype=torch.int64)
    inputs = [
        x if dim is not None else x.new_zeros(x.shape[1:]) for x, dim in zip((tables, indices), in_dims, strict=True)
    ]
    gradient = torch.func.grad(lambda *xs: embedding(*xs).sin().sum())
    assert torch.vmap(gradient, in_dims)(*inputs).shape == (0, 3, 4)


@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 1)])
def test_replicas(in_dims: tuple[int | None, int | None]) -> None:
    tables = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    indices = torch.randint(0, 3, (3, 3, 5))
    table, index = (x if dim is not None else x[0] for x, dim in zip((tables, indices), in_dims, strict=True))

    def by_torch(table: Tensor, index: Tensor) -> Tensor:
        return torch.nn.functional.embedding(index, table)

    actual, expected = torch.vmap(embedding, in_dims)(table, index), looped(by_torch, in_dims, table, index)
    assert torch.equal(actual, expected)
    dout = torch.randn_like(expected)
    (actual_grad,), (expected_grad,) = (torch.autograd.grad(y, tables, dout) for y in (actual, expected))
    torch.testing.assert_close(actual_grad, expected_grad)
    gradient, expected_gradient = (
        torch.func.grad(lambda *xs, lookup=lookup: lookup(*xs).sin().sum()) for lookup in (embedding, by_torch)
    )
    actual_grads = torch.vmap(gradient, in_dims)(table, index)
    torch.testing.assert_close(actual_grads, looped(expected_gradient, in_dims, table, index))


def test_compiles_and_transforms() -> None:
    table, indices, _ = problem(7, 3, (2, 5), 0.5)

    def loss(table: Tensor) -> Tensor:
        return embedding(table, indices).square().sum()

    (expected,) = torch.autograd.grad(torch.nn.functional.embedding(indices, table).square().sum(), table)
    torch.testing.assert_close(torch.func.grad(loss)(table), expected)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(table), table)[0], expected)


@pytest.mark.gpu
@pytest.mark.parametrize("zeros", [0.0, 0.99])
def test_on_a_gpu_and_from_run_to_run(zeros: float) -> None:
    table, indices, dout = problem(8192, 48, (64, 2048), zeros, "cuda", torch.float32)
    first, second = (torch.autograd.grad(embedding(table, indices), table, dout)[0] for _ in range(2))
    assert torch.equal(first, second)
    exact = torch.zeros(8192, 48, dtype=torch.float64, device="cuda")
    exact.index_add_(0, indices.flatten(), dout.flatten(0, 1).double())
    torch.testing.assert_close(first.double(), exact, rtol=1e-4, atol=1e-3)
