"""Recurrences by associative scans against loops over time."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rebased.ops.recurrence import linear_recurrence_, maximum_recurrence_
from tolerances import RELATIVE_RMS, relative_rms

STEPS: dict[Callable[..., Tensor], Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    linear_recurrence_: lambda decay, inputs, h: decay * h + inputs,
    maximum_recurrence_: lambda decrease, inputs, m: torch.maximum(m - decrease, inputs),
}
SCANS = pytest.mark.parametrize("scan", STEPS, ids=["linear", "maximum"])


def looped(
    scan: Callable[..., Tensor], change: Tensor, inputs: Tensor, initial: Tensor | None, *, reverse: bool
) -> Tensor:
    """One step after another."""
    results: list[Tensor] = []
    for t in reversed(range(inputs.shape[1])) if reverse else range(inputs.shape[1]):
        before = results[-1] if results else initial
        results.append(inputs[:, t] if before is None else STEPS[scan](change[:, t], inputs[:, t], before))
    return torch.stack(results[::-1] if reverse else results, dim=1)


def problem(length: int, *, seed: int = 0, shared: bool = False, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Changes in [0, 1], inputs and an initial value; with ``shared`` changes serve several of the inputs."""
    generator = torch.Generator().manual_seed(seed)
    change = torch.rand(3, length, 1 if shared else 2, 5, generator=generator, dtype=torch.float64)
    inputs, initial = (torch.randn(3, *n, 2, 5, generator=generator, dtype=torch.float64) for n in ((length,), ()))
    return [x.to(dtype) for x in (change, inputs, initial)]


@SCANS
@given(
    length=st.integers(1, 70),
    seed=st.integers(0, 2**32),
    reverse=st.booleans(),
    shared=st.booleans(),
    has_initial=st.booleans(),
)
def test_equals_a_loop(
    scan: Callable[..., Tensor], length: int, seed: int, reverse: bool, shared: bool, has_initial: bool
) -> None:
    change, inputs, initial = problem(length, seed=seed, shared=shared)
    given_initial = initial if has_initial else None
    reverse = reverse and scan is linear_recurrence_
    expected = looped(scan, change, inputs, given_initial, reverse=reverse)
    actual = scan(change, inputs, given_initial, **({"reverse": True} if reverse else {}))
    assert actual is inputs
    assert relative_rms(actual, expected) <= RELATIVE_RMS[torch.float64]


@SCANS
def test_other_lengths(scan: Callable[..., Tensor]) -> None:
    change, inputs, initial = problem(1000)
    expected = looped(scan, change, inputs, initial, reverse=False)
    assert relative_rms(scan(change, inputs, initial), expected) <= RELATIVE_RMS[torch.float64]
    assert scan(change[:, :0], inputs[:, :0], initial).shape == (3, 0, 2, 5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 5, 7, 8, 13])
@pytest.mark.parametrize("padding", [1, 2, 9, 64])
def test_steps_that_change_nothing(length: int, padding: int, reverse: bool) -> None:
    """Where the recurrence ends they are not noticed in a single bit, however float32 rounds."""
    change, inputs, initial = problem(length, dtype=torch.float32)
    sizes = (0, 0, 0, 0, padding, 0) if reverse else (0, 0, 0, 0, 0, padding)
    padded = [torch.nn.functional.pad(x, sizes, value=value) for x, value in ((change, 1.0), (inputs, 0.0))]
    expected = linear_recurrence_(change, inputs, initial, reverse=reverse)[:, 0 if reverse else -1]
    actual = linear_recurrence_(*padded, initial, reverse=reverse)[:, 0 if reverse else -1]
    assert torch.equal(actual, expected)


def test_decays_may_vanish() -> None:
    """Products of 300 of them are far below the smallest number, and some are zero."""
    change, inputs, initial = problem(300, dtype=torch.float32)
    change = change.pow(8).where(change > 0.1, 0.0)
    exact = [x.double() for x in (change, inputs, initial)]
    expected = looped(linear_recurrence_, *exact, reverse=False)
    assert relative_rms(linear_recurrence_(change, inputs, initial), expected) <= RELATIVE_RMS[torch.float32]


def test_decreases_may_be_huge() -> None:
    """Where nothing is left of the past, not a digit of what there is now is lost to it."""
    change, inputs, initial = problem(100, dtype=torch.float32)
    expected = inputs.clone()
    assert torch.equal(maximum_recurrence_(change + 1e30, inputs, initial), expected)
