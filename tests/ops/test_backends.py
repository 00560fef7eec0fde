"""Which backend is chosen, and what is said where one cannot be."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rebased.kernels import BASED, ELU_PLUS_ONE, REBASED, Kernel, Power
from rebased.ops import backends
from rebased.ops.backends import choose_backend


def queries(**changes: Any) -> Any:
    """What is asked of q; a tensor on a GPU cannot be had everywhere."""
    device = torch.device(changes.pop("device", "cuda"))
    fields = {"dtype": torch.bfloat16, "shape": torch.Size((1, 100, 2, 16)), "device": device}
    return SimpleNamespace(is_cuda=device.type == "cuda", **(fields | changes))


@pytest.mark.parametrize("kernel", [REBASED, BASED])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_polynomials_go_to_triton_on_cuda(kernel: Kernel, dtype: torch.dtype) -> None:
    assert choose_backend("auto", queries(dtype=dtype), kernel) == "triton"


@pytest.mark.parametrize(
    ("kernel", "changes"),
    [
        (REBASED, {"device": "cpu"}),
        (REBASED, {"dtype": torch.float64}),
        (REBASED, {"shape": torch.Size((1, 100, 2, 33))}),
        (Power(4), {}),
        (ELU_PLUS_ONE, {}),
    ],
    ids=["cpu", "float64", "wide", "power", "feature map"],
)
def test_the_rest_goes_to_chunked(kernel: Kernel, changes: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_backend("auto", queries(**changes), kernel) == "chunked"


def test_without_triton_there_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HAS_TRITON", False)
    monkeypatch.setattr(backends, "_warned", False)
    with pytest.warns(UserWarning, match="Triton is not installed"):
        assert choose_backend("auto", queries(), REBASED) == "chunked"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_backend("auto", queries(), REBASED) == "chunked"
    with pytest.raises(ValueError, match="needs Triton"):
        choose_backend("triton", queries(), REBASED)


@pytest.mark.parametrize(
    ("kernel", "changes", "message"),
    [
        (ELU_PLUS_ONE, {}, "computes Polynomial kernels, not FeatureMap"),
        (REBASED, {"dtype": torch.float64}, "q has dtype float64"),
        (REBASED, {"shape": torch.Size((1, 100, 2, 33))}, "takes feature_dim up to 32, and q has more"),
    ],
)
def test_what_triton_cannot_do_is_said(kernel: Kernel, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_backend("triton", queries(**changes), kernel)


def test_triton_needs_a_cuda_device_or_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "IS_INTERPRETED", False)
    with pytest.raises(ValueError, match="needs a CUDA device, and q is on cpu"):
        choose_backend("triton", queries(device="cpu"), REBASED)


def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="rebased.ops.backends"):
        choose_backend("auto", queries(), REBASED)
    assert "chose 'triton' for (1, 100, 2, 16) on cuda" in caplog.text


def test_no_more_rows_than_triton_counts() -> None:
    x = queries(numel=lambda: 1)
    assert backends.runs_on_triton("auto", "x", x, None, num_rows=2**30) is True
    assert backends.runs_on_triton("auto", "x", x, None, num_rows=2**30 + 1) is False
    with pytest.raises(ValueError, match=r"^backend='triton' takes up to 1073741824 rows, x has 1073741825; use"):
        backends.runs_on_triton("triton", "x", x, None, num_rows=2**30 + 1)
