"""Right backends pass the check before timing; wrong ones do not."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rebased.bench import verify
from rebased.bench.config import backends_on
from rebased.bench.verify import TOLERANCES, WrongBackendError, check_backend, check_step, relative_rms_error
from rebased.ops import kernel_attention, kernel_attention_step

CPU = torch.device("cpu")


def test_error_by_hand() -> None:
    assert relative_rms_error(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == pytest.approx(0.1)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("backend", backends_on("cpu"))
def test_right_backend_passes(backend: str, dtype: torch.dtype) -> None:
    error = check_backend(backend, device=CPU, dtype=dtype, feature_dim=5, head_dim=7, backward=True)
    assert error <= TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_right_step_passes(dtype: torch.dtype) -> None:
    assert check_step(device=CPU, dtype=dtype, feature_dim=5, head_dim=7) <= TOLERANCES[dtype]


def test_wrong_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(*arguments: Any, **options: Any) -> Any:
        out, state = kernel_attention_step(*arguments, **options)
        return out * 1.001, state

    monkeypatch.setattr(verify, "kernel_attention_step", spoilt)
    with pytest.raises(WrongBackendError, match=r"kernel_attention_step on cpu is not timed.*output 1\.0e-03"):
        check_step(device=CPU, dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_right_on_a_gpu(dtype: torch.dtype) -> None:
    cuda = torch.device("cuda")
    assert check_backend("triton", device=cuda, dtype=dtype, backward=True) <= TOLERANCES[dtype]
    assert check_step(device=cuda, dtype=dtype) <= TOLERANCES[dtype]


def spoil(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let ``change`` touch what the chunked backend returns."""

    def spoilt(*arguments: Any, backend: str, **options: Any) -> Tensor:
        out = kernel_attention(*arguments, backend=backend, **options)
        return change(out) if backend == "chunked" else out

    monkeypatch.setattr(verify, "kernel_attention", spoilt)


def test_wrong_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda out: out * 1.001)
    with pytest.raises(WrongBackendError, match=r"'chunked' on cpu is not timed.*output 1\.0e-03"):
        check_backend("chunked", device=CPU, dtype=torch.float32)


def test_nan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, lambda out: out.index_fill(1, torch.tensor([700]), float("nan")))
    with pytest.raises(WrongBackendError, match="output nan"):
        check_backend("chunked", device=CPU, dtype=torch.float32)


class WrongGradient(torch.autograd.Function):
    """The identity, with a gradient that is off by a hundredth."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 1.01


def test_wrong_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, WrongGradient.apply)
    check_backend("chunked", device=CPU, dtype=torch.float32)
    with pytest.raises(WrongBackendError, match=r"dq 1\.0e-02, dk 1\.0e-02, dv 1\.0e-02"):
        check_backend("chunked", device=CPU, dtype=torch.float32, backward=True)
