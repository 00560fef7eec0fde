"""Which of a kernel's versions a launcher takes, and when it asks Triton for one."""

from typing import Any
from unittest.mock import patch

import pytest
import torch

launch = pytest.importorskip("rebased.ops.triton.launch")


class Kernel:
    """Counts what it is asked to compile; a version notes what it is called with."""

    arg_names = ("x", "number", "SIZE")

    def __init__(self) -> None:
        self.compiled: list[int] = []
        self.called: list[tuple[int, int]] = []

    def __getitem__(self, grid: Any) -> Any:
        def run(x: torch.Tensor, number: int, SIZE: int, **options: int) -> Any:
            self.compiled.append(number)
            return Version(self, number)

        return run


class Version:
    def __init__(self, kernel: Kernel, number: int) -> None:
        self.kernel, self.number = kernel, number

    def __getitem__(self, grid: Any) -> Any:
        return lambda x, number, SIZE: self.kernel.called.append((self.number, number))


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


def launcher(kernel: Kernel) -> Any:
    with patch.object(launch.triton, "JITFunction", Kernel):
        return launch.Launcher(kernel, {"SIZE": 4}, num_warps=1, num_stages=1)


def test_triton_is_asked_once_for_each_kind_of_number(kernel: Kernel) -> None:
    """Ones, multiples of 16, and what does not fit 32 bits are compiled in; nothing else of a number is."""
    run, x = launcher(kernel), torch.zeros(8)
    numbers = [1, 2, 3, 16, 32, 2**31 + 1, 2**31 + 3, 2**31, 2**31 + 16, 2, 32, 1]
    for number in numbers:
        run(1, [x], [number], [])
    assert kernel.compiled == [1, 2, 16, 2**31 + 1, 2**31]
    later = [(2, 3), (16, 32), (2**31 + 1, 2**31 + 3), (2**31, 2**31 + 16), (2, 2), (16, 32), (1, 1)]
    assert kernel.called == later


def test_other_pointers_and_dtypes_are_other_versions(kernel: Kernel) -> None:
    run, x = launcher(kernel), torch.zeros(8)
    for tensor in (x, x[1:], x.double(), x):
        run(1, [tensor], [2], [])
    assert kernel.compiled == [2, 2, 2]
    assert kernel.called == [(2, 2)]


def test_what_is_remembered_does_not_grow(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MOST_CALLS", 10)
    run, x = launcher(kernel), torch.zeros(8)
    for number in range(100, 200):
        run(1, [x], [number], [])
        assert len(run._calls) <= 10
    assert len(kernel.compiled) == 2
    assert [number for _, number in kernel.called] == [n for n in range(100, 200) if n not in kernel.compiled]
