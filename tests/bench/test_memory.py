"""Peak memory is exact for allocations known in advance."""

import pytest
import torch
from torch import Tensor

from rebased.bench.memory import peak_memory

MIB = 2**20
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def mebibytes(count: int, device: str) -> Tensor:
    return torch.empty(count * MIB, dtype=torch.uint8, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_largest_moment_counts(device: str) -> None:
    """5 and 3 MiB at once, then 2 and 3: not the sum of all, not the end, not the largest single one."""

    def call() -> Tensor:
        first, second = mebibytes(5, device), mebibytes(3, device)
        del first
        third = mebibytes(2, device)
        del second
        return third

    assert peak_memory(call, device=torch.device(device)) == 8 * MIB


@pytest.mark.parametrize("device", DEVICES)
def test_result_counts_and_inputs_do_not(device: str) -> None:
    given = mebibytes(4, device)
    assert peak_memory(given.clone, device=torch.device(device)) == 4 * MIB


def test_temporaries_inside_one_operator_count() -> None:
    """Summing per operator would give 0 here: logsumexp allocates and frees within one call."""
    x = torch.randn(1024, 1024)
    assert peak_memory(lambda: torch.logsumexp(x, dim=0), device=torch.device("cpu")) >= x.nbytes


def test_backward_counts() -> None:
    x = torch.randn(MIB, requires_grad=True)
    weight = torch.ones(MIB)

    def call() -> tuple[Tensor, ...]:
        return torch.autograd.grad(x.exp(), x, weight)

    assert peak_memory(call, device=torch.device("cpu")) == 2 * x.nbytes  # exp's output, kept, and the gradient


def test_nothing_allocated() -> None:
    assert peak_memory(lambda: None, device=torch.device("cpu")) == 0
