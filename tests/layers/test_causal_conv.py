"""The convolution as a compiler is shown it: sums of rolled products, the same numbers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rebased.layers import ShortConv
from rebased.layers.causal_conv import CausalConv
from rebased.ops.layer_norm import LayerNorm


@given(
    num_taps=st.integers(1, 5),
    num_tokens=st.integers(1, 9),
    width=st.integers(1, 3),
    at=st.none() | st.lists(st.integers(0, 8), min_size=1, max_size=4),
    has_past=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_compiled_as_not(
    num_taps: int, num_tokens: int, width: int, at: list[int] | None, has_past: bool, seed: int
) -> None:
    """Sequences shorter than the taps, too. NaN in a sequence's end is in no output before it."""
    torch.manual_seed(seed)
    torch.compiler.reset()
    conv = CausalConv(width, num_taps).double()
    x = torch.randn(2, num_tokens, width, dtype=torch.float64, requires_grad=True)
    past = torch.randn(2, num_taps - 1, width, dtype=torch.float64, requires_grad=True) if has_past else None
    places = None if at is None else torch.tensor(at)[None].clamp(max=num_tokens - 1).expand(2, -1)
    compiled = torch.compile(conv, fullgraph=True, backend="eager")
    inputs = [x, *conv.parameters(), *([past] if past is not None else [])]

    def everything(run: torch.nn.Module) -> list[torch.Tensor | None]:
        y, last = run(x, past, places, None)
        loss = (y * torch.arange(1.0, 1 + y.numel(), dtype=torch.float64).view_as(y)).sum() + last.square().sum()
        return [y, last, *torch.autograd.grad(loss, inputs, allow_unused=True)]

    for actual, expected in zip(everything(compiled), everything(conv), strict=True):
        torch.testing.assert_close(actual, expected)

    broken = x.detach().clone()
    broken[:, -1] = torch.nan
    y, _ = compiled(broken, None, None, None)
    assert not y[:, :-1].isnan().any()
    if num_tokens > 1:
        y, _ = compiled(broken, None, torch.zeros(2, 1, dtype=torch.int64), None)
        assert torch.autograd.grad(y.sum(), conv.weight)[0].isfinite().all()  # of rows that no output sees, neither


def test_compiled_it_keeps_no_shifted_copies() -> None:
    """For the backward pass: what the norm keeps, the gate, and the gate's input."""
    torch.manual_seed(0)
    torch.compiler.reset()
    norm, mixer = LayerNorm(16, eps=1e-5), ShortConv(16, num_taps=5)
    x = torch.randn(4, 64, 16, requires_grad=True)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = torch.compile(lambda x: mixer(norm(x)), fullgraph=True)(x)
    assert 2 * x.nbytes < sum(kept.values()) < 3.5 * x.nbytes
    (actual,) = torch.autograd.grad(y.square().sum(), x)
    (expected,) = torch.autograd.grad(mixer(norm(x)).square().sum(), x)
    torch.testing.assert_close(actual, expected)
    assert y.detach() == pytest.approx(mixer(norm(x)).detach(), abs=1e-5)
