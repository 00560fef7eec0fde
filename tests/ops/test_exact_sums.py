"""Sums that keep what rounding drops: block by block, all at once, in place or not, the same bits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rebased.ops import exact_sums
from rebased.ops.exact_sums import add_exactly, no_residual

SHAPE = (2, 3, 5, 7)


def problem(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of very different sizes, so that much is rounded away."""
    generator = torch.Generator().manual_seed(seed)
    sums, more = (torch.randn(SHAPE, generator=generator) * 10.0**exponent for exponent in (4, -2))
    return sums, (torch.randn(SHAPE, generator=generator) * 1e-4).bfloat16(), more


def by_definition(sums: Tensor, residual: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
    exact = sums.double() + residual.double() + more.double()
    return exact.float(), (exact - exact.float().double()).bfloat16()


@given(seed=st.integers(0, 2**31), block=st.sampled_from([1, 7, 64, 105, 2**16]), inplace=st.booleans())
def test_blocks_are_the_whole(seed: int, block: int, inplace: bool) -> None:
    sums, residual, more = problem(seed)
    expected = by_definition(sums, residual, more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_sums, "BLOCK", block)
        found = add_exactly(sums, residual, more, inplace=inplace)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert (found[0] is sums, found[1] is residual) == (inplace, inplace)


@pytest.mark.parametrize("inplace", [False, True])
def test_what_is_not_cut_into_blocks(inplace: bool) -> None:
    """Other layouts, one term for several sums, and gradients."""
    sums, residual, more = problem(0)
    for case in (
        (sums.transpose(0, 1), residual.transpose(0, 1), more.transpose(0, 1)),
        (sums, residual, more[:1]),
    ):
        expected = by_definition(*case)
        copies = tuple(x.clone(memory_format=torch.preserve_format) for x in case)
        found = add_exactly(*copies, inplace=inplace)
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
        assert (found[0] is copies[0]) == inplace


def test_gradients_flow_to_sums_and_terms() -> None:
    sums, residual, more = problem(1)
    leaves = sums.requires_grad_(), more.requires_grad_()
    rounded, left = add_exactly(sums, residual, more)
    assert not left.requires_grad
    dout = torch.randn(SHAPE)
    assert all(torch.equal(grad, dout) for grad in torch.autograd.grad(rounded, leaves, dout))


def test_float64_has_no_residual() -> None:
    sums, _, more = (x.double() for x in problem(2))
    assert no_residual(sums) is None
    expected = sums + more
    assert torch.equal(add_exactly(sums, None, more)[0], expected)
    assert add_exactly(sums, None, more, inplace=True)[0] is sums
    assert torch.equal(sums, expected)


def test_small_terms_are_not_lost() -> None:
    """Of 2**24 + 1, float32 keeps 2**24, however often."""
    sums, residual = torch.full((3,), 2.0**24), torch.zeros(3, dtype=torch.bfloat16)
    for _ in range(100):
        sums, residual = add_exactly(sums, residual, torch.ones(3))
    assert (sums.double() + residual.double()).tolist() == [2.0**24 + 100] * 3
