"""The row-blocked oracle is the definition: it agrees with autograd over whole matrices, however it is cut."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from rebased.bench.candidates import Inputs
from rebased.bench.oracle import Rows, attend_by_rows, kernel_rows, softmax_rows
from rebased.kernels import BASED, REBASED, Kernel
from rebased.ops import kernel_attention

B, T, H, F, D = 2, 37, 3, 4, 5
ROWS = [T, 16, 1]  # in a block: all, several with a short last one, one


def random_inputs() -> Inputs:
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(B, T, H, size, generator=generator, dtype=torch.float64) for size in (F, F, D, D))
    return Inputs(q=q, k=k, v=v, grad_output=grad)


def assert_same(rows: Rows, inputs: Inputs, attend: object, block: int) -> None:
    leaves = [x.clone().requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    out = attend(*leaves)  # type: ignore[operator]
    expected = (out, *torch.autograd.grad(out, leaves, inputs.grad_output))
    actual = attend_by_rows(rows, inputs, max_similarities=block * B * H * T)
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("block", ROWS)
@pytest.mark.parametrize("kernel", [REBASED, BASED], ids=["rebased", "based"])
def test_kernel(kernel: Kernel, block: int) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return kernel_attention(q, k, v, kernel, backend="reference")

    assert_same(kernel_rows(kernel), random_inputs(), attend, block)


@pytest.mark.parametrize("block", ROWS)
def test_softmax(block: int) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    assert_same(softmax_rows, random_inputs(), attend, block)


def test_softmax_by_hand() -> None:
    """Two tokens with F = 1: the second weighs its keys 0 and log 3 as 1 : 3."""
    q = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    k = torch.tensor([1.0, 3.0], dtype=torch.float64).log()
    v = torch.tensor([8.0, 4.0], dtype=torch.float64).reshape(1, 2, 1, 1)
    out = softmax_rows(q, k.reshape(1, 2, 1, 1), v)
    assert out.flatten().tolist() == pytest.approx([8.0, 5.0])
