"""conv_silu against torch's conv1d in float64: in plain torch, and in Triton's interpreter or on a GPU."""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from rebased.ops.triton import conv_silu as triton_conv
from scan_cases import BACKENDS, DEVICE, DTYPES, LAYOUTS, compiled
from tolerances import assert_close_in
from transform_cases import assert_alike, looped, with_grads

module = importlib.import_module("rebased.ops.conv_silu")  # not the function of that name
conv_silu = module.conv_silu

FINEST = {"torch": torch.float64, "triton": torch.float32}
Results = dict[str, Tensor]

SMALL_TILES = {"FORWARD_WIDTH": 4, "FORWARD_STEPS": 4, "BACKWARD_WIDTH": 4, "BACKWARD_STEPS": 2, "SPAN": 8}


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several steps, spans and blocks of channels, also for a few tokens and channels."""
    for name, size in SMALL_TILES.items():
        monkeypatch.setattr(triton_conv, name, size)
    triton_conv._launcher.cache_clear()
    yield
    triton_conv._launcher.cache_clear()


def definition(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    padded = functional.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    return functional.silu(functional.conv1d(padded, weight[:, None], bias, groups=x.shape[2])).transpose(1, 2)


def draw(sizes: tuple[int, int, int, int], dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, ...]:
    """x, weight, bias and dy; weights are as a model's, float32 at least."""
    B, T, W, K = sizes
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.promote_types(dtype, torch.float32)
    shapes = ((B, T, W), dtype), ((W, K), parameters), ((W,), parameters), ((B, T, W), dtype)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, kind) for shape, kind in shapes
    )


def run(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], dtype: torch.dtype | None = None) -> Results:
    """The result and the gradients, from inputs of that dtype, or as they are."""
    *leaves, dy = (x if dtype is None else x.to(dtype) for x in inputs)
    leaves = [x.detach().requires_grad_() for x in leaves]
    y = function(*leaves)
    found = [y.detach(), *torch.autograd.grad(y, leaves, dy)]
    return dict(zip(("y", "dx", "dweight", "dbias"), found, strict=True))


def assert_close(inputs: tuple[Tensor, ...], backend: str) -> None:
    x = inputs[0]
    actual = run(partial(conv_silu, backend=backend), inputs)
    assert [t.dtype for t in actual.values()] == [x.dtype, *(t.dtype for t in inputs[:3])]
    compute = torch.promote_types(x.dtype, torch.float32)
    rounded = {name: t.to(actual[name].dtype) for name, t in run(definition, inputs, compute).items()}
    assert_close_in(x.dtype, actual, run(definition, inputs, torch.float64), rounded)


@BACKENDS
@settings(max_examples=25)
@given(data=st.data())
def test_numerics(backend: str, data: st.DataObject) -> None:
    sizes = data.draw(
        st.tuples(st.integers(1, 3), st.integers(1, 21), st.integers(1, 9), st.integers(1, 5)), label="B, T, W, K"
    )
    dtype = data.draw(st.sampled_from(DTYPES[backend]), label="dtype")
    layout = data.draw(st.sampled_from(list(LAYOUTS)), label="layout")
    x, weight, bias, dy = draw(sizes, dtype, data.draw(st.integers(0, 99), label="seed"))
    assert_close((LAYOUTS[layout](x), weight, bias, LAYOUTS[layout](dy)), backend)


@pytest.mark.parametrize("sizes", [(1, 17, 70, 4), (1, 130, 5, 4)], ids=str)
def test_tiles_of_their_real_size(sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    triton_conv._launcher.cache_clear()
    assert_close(draw(sizes), "triton")


@pytest.mark.filterwarnings("ignore:overflow")  # the interpreter's, of numbers that become infinite as they should
@BACKENDS
def test_large_sums(backend: str) -> None:
    """SiLU of which is 0 or the sum itself; no exponential of it exists."""
    x, weight, bias, dy = draw((1, 6, 5, 3))
    inputs = x * 1e4, weight, bias, dy
    actual = run(partial(conv_silu, backend=backend), inputs)
    expected = run(definition, inputs, torch.float64)
    assert_close_in(torch.float32, actual, expected, expected)


@BACKENDS
def test_no_later_token_matters(backend: str) -> None:
    x, weight, bias, _ = draw((1, 12, 5, 4))
    changed = x.clone()
    changed[:, 7] = torch.nan
    y, other = conv_silu(x, weight, bias, backend=backend), conv_silu(changed, weight, bias, backend=backend)
    assert torch.equal(y[:, :7], other[:, :7])
    assert other[:, 7:11].isnan().all()
    assert torch.equal(y[:, 11:], other[:, 11:])


@BACKENDS
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3)], ids=str)
def test_nothing(backend: str, shape: tuple[int, int, int]) -> None:
    x = torch.zeros(shape, device=DEVICE, requires_grad=True)
    weight, bias = torch.ones(3, 4, device=DEVICE, requires_grad=True), torch.ones(3, device=DEVICE)
    y = conv_silu(x, weight, bias, backend=backend)
    assert y.shape == shape
    dx, dweight = torch.autograd.grad(y.sum(), (x, weight))
    assert dx.shape == shape
    assert not dweight.any()


def test_nothing_compiled() -> None:
    """The weight's gradient once had the weight's own strides there, and compiled code raised AssertionError."""
    x, weight, bias, _ = draw((0, 5, 3, 4))
    weight = weight.mT.contiguous().mT[None]
    operator = torch.ops.rebased.conv_silu_backward.default
    torch.library.opcheck(operator, (x[:, :, None], x[:, :, None], weight, bias[None], "torch"))


@BACKENDS
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (None, 0, 0), (2, None, None), (1, 2, 1)], ids=str)
def test_vmap(backend: str, in_dims: tuple[int | None, ...]) -> None:
    """With autograd outside, as replicas train, and vmap of gradients."""
    inputs = draw((2, 9, 5, 3), FINEST[backend])[:3]
    inputs = tuple(
        x if dim is None else torch.stack([x, 2 * x, 1 - x], dim=dim) for x, dim in zip(inputs, in_dims, strict=True)
    )
    function = partial(conv_silu, backend=backend)
    expected = with_grads(lambda *xs: looped(function, in_dims, *xs), *inputs)
    assert_alike(with_grads(torch.vmap(function, in_dims), *inputs), expected)
    gradient = torch.func.grad(lambda *xs: function(*xs).sin().sum(), argnums=(0, 1, 2))
    assert_alike(torch.vmap(gradient, in_dims)(*inputs), looped(gradient, in_dims, *inputs))


@BACKENDS
def test_compiled_under_vmap(backend: str) -> None:
    x, weight, bias, _ = (torch.stack([t, -t]) for t in draw((2, 9, 5, 3), FINEST[backend]))
    mapped = torch.vmap(partial(conv_silu, backend=backend))
    assert_alike(with_grads(compiled(mapped), x, weight, bias), with_grads(mapped, x, weight, bias))


def test_opcheck() -> None:
    x, weight, bias, dy = (t[:, :, None] if t.ndim == 3 else t[None] for t in draw((2, 9, 5, 3)))
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    torch.library.opcheck(torch.ops.rebased.conv_silu.default, (*leaves, "torch"))
    torch.library.opcheck(torch.ops.rebased.conv_silu_backward.default, (dy, x, weight, bias, "torch"))


def test_autocast_does_not_reach_in() -> None:
    x, weight, bias, _ = draw((2, 9, 5, 3))
    with torch.autocast(DEVICE, torch.bfloat16):
        y = conv_silu(x, weight, bias, backend="torch")
    assert torch.equal(y, conv_silu(x, weight, bias, backend="torch"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3)}, r"x has shape \(2, 3\); it must have 3 axes \(B, T, W\)"),
        ({"weight": torch.zeros(4, 2)}, r"weight has shape \(4, 2\); it must be \(3, 2\) to go with x"),
        ({"bias": torch.zeros(4)}, r"bias has shape \(4,\); it must be \(3,\) to go with x"),
        ({"backend": "cuda"}, "backend='cuda' is unknown; it may be 'auto', 'torch', 'triton'"),
        ({"weight": torch.zeros(3, 9), "backend": "triton"}, "takes up to 8 taps, and weight has 9"),
        ({"x": torch.zeros(2, 5, 3, dtype=torch.float64), "backend": "triton"}, "computes in float32"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    arguments = {"x": torch.zeros(2, 5, 3), "weight": torch.zeros(3, 2), "bias": torch.zeros(3)} | change
    with pytest.raises(ValueError, match=message):
        conv_silu(**arguments)
