"""The chunked backend on a CUDA device: the same problems as on a CPU, and longer ones."""

import pytest
import torch
from hypothesis import given, settings

from cases import Case, cases
from oracles import by_cumulative_sums, with_gradients
from rebased.kernels import BASED, REBASED, Kernel
from rebased.ops import kernel_attention
from tolerances import assert_close_in, assert_close_in_float64

pytestmark = pytest.mark.gpu


def run(case: Case, backend: str) -> dict[str, torch.Tensor]:
    found = with_gradients(lambda: case.call(kernel_attention, return_state=True, backend=backend), case.leaves)
    return {name: x.cpu() for name, x in found.items()}


@given(case=cases(max_len=300, max_feature_dim=17))
@settings(max_examples=150)
def test_equals_the_reference_on_the_cpu(case: Case) -> None:
    expected = run(case, "reference")
    actual = run(case.to("cuda", torch.float64), "chunked")
    other = with_gradients(lambda: case.call(by_cumulative_sums), case.leaves)
    assert_close_in_float64(actual, expected, other, floor=case.grad_floor(expected["out"]))


@pytest.mark.parametrize("kernel", [REBASED, BASED], ids=["rebased", "based"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_error_against_float64(dtype: torch.dtype, kernel: Kernel) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = {"q": 16, "k": 16, "v": 64}
    leaves = {name: torch.randn(2, 3000, 4, n, generator=generator).to("cuda", dtype) for name, n in sizes.items()}

    def results(dtype: torch.dtype, backend: str) -> dict[str, torch.Tensor]:
        cast = {name: x.to(dtype).requires_grad_() for name, x in leaves.items()}
        return run(Case(kernel, cast), backend)

    actual, expected, baseline = (
        results(dtype, "chunked"),
        results(torch.float64, "reference"),
        results(dtype, "reference"),
    )
    assert_close_in(dtype, actual, expected, baseline)


def test_results_are_identical_from_run_to_run() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    leaves = {
        name: torch.randn(1, 65536, 4, n, generator=generator, device="cuda", dtype=torch.bfloat16).requires_grad_()
        for name, n in {"q": 16, "k": 16, "v": 64}.items()
    }
    first, second = (run(Case(REBASED, leaves), "chunked") for _ in range(2))
    for name, x in first.items():
        assert torch.equal(x, second[name]), name


def test_devices_must_agree() -> None:
    q = torch.randn(1, 4, 2, 3, device="cuda")
    with pytest.raises(ValueError, match="k is on cpu, q on cuda"):
        kernel_attention(q, q.cpu(), q)
    with pytest.raises(ValueError, match="at is on cpu"):
        kernel_attention(q[:, :1], q, q, at=torch.tensor([[0]]))


def test_compiled_with_inductor() -> None:
    q, k, v = (torch.randn(2, 500, 3, n, device="cuda", requires_grad=True) for n in (16, 16, 20))
    compiled = torch.compile(kernel_attention, fullgraph=True)
    results = []
    for attention in (kernel_attention, compiled):
        out = attention(q, k, v)
        results.append([out, *torch.autograd.grad(out.square().sum(), (q, k, v))])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)
