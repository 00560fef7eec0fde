"""The Triton kernels against the float64 reference: in the interpreter on a CPU, natively where there is a GPU."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import Case, cases
from oracles import with_gradients
from rebased.ops import KernelState, kernel_attention
from rebased.ops.triton import driver
from rebased.ops.triton.tuning import Tile, Tuning
from tolerances import assert_close_in

POLYNOMIALS = ("rebased", "based", "learned", "learned per head", "linear")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def small_tiles(dtype: torch.dtype, feature_dim: int, head_dim: int) -> Tuning:
    """Many chunks and segments in a short sequence, and few programs: the interpreter runs one after another."""
    tile = Tile(rows=16, columns=16, num_i=feature_dim, num_warps=4, num_stages=2)
    return Tuning(
        chunk=32, enough_programs=6, wanted_programs=6, states=tile, forward=tile, query_grads=tile, key_grads=tile
    )


def cast(case: Case, dtype: torch.dtype, device: str) -> Case:
    leaves = {name: x.detach().to(device, dtype).requires_grad_() for name, x in case.leaves.items()}
    for name in ("state.values", "state.normalizer"):
        if name in leaves:
            leaves[name] = case.leaves[name].detach().to(device, torch.float32 if dtype != torch.float64 else dtype)
            leaves[name].requires_grad_()
    arguments: dict[str, Any] = {}
    for name, x in case.arguments.items():
        arguments[name] = x.to(device) if isinstance(x, torch.Tensor) else x.detach().to(device) if isinstance(x, KernelState) else x
    kernel = case.kernel
    if "c0" in leaves:
        kernel = type(kernel)(leaves["c0"], leaves["c1"], leaves["c2"])
    return replace(case, kernel=kernel, leaves=leaves, arguments=arguments)


def run(case: Case, backend: str) -> dict[str, torch.Tensor]:
    found = with_gradients(lambda: case.call(kernel_attention, return_state=True, backend=backend), case.leaves)
    return {name: x.cpu() for name, x in found.items()}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "tuning", small_tiles)


@given(case=cases(max_len=100, max_feature_dim=18, kernels=POLYNOMIALS), dtype=st.sampled_from([torch.float32, torch.float16]))
@settings(max_examples=60)
def test_equals_the_reference(case: Case, dtype: torch.dtype) -> None:
    rounded = cast(case, dtype, DEVICE)
    exact = cast(cast(case, dtype, "cpu"), torch.float64, "cpu")
    expected = run(exact, "reference")
    baseline = run(cast(case, dtype, "cpu"), "reference")
    assert_close_in(dtype, run(rounded, "triton"), expected, baseline, floor=case.grad_floor(expected["out"]))
