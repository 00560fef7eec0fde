"""norm_affine against torch's layer norm in float64: in plain torch, and in Triton's interpreter or on a GPU."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap

from rebased.ops import backends
from rebased.ops.norm import MAX_TRITON_WIDTH, norm_affine
from rebased.ops.triton import norm as triton_norm
from tolerances import RELATIVE_RMS, relative_rms
from transform_cases import assert_alike, assert_refuses_double_backward, looped, saved_by, with_grads

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {
    "torch": [torch.float64, torch.float32, torch.float16, torch.bfloat16],
    # The interpreter's bfloat16 is not to be relied on.
    "triton": [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])],
}
BACKENDS = pytest.mark.parametrize("backend", DTYPES)

compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles and programs also for a few rows: the interpreter runs one after another."""
    monkeypatch.setattr(triton_norm, "TILE_ELEMENTS", 64)
    monkeypatch.setattr(triton_norm, "NUM_PROGRAMS", 3)


@pytest.fixture
def _forget_compilations() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# ---- The oracle ----


def oracle(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float = 1e-5, normalize: bool = True
) -> Tensor:
    """By torch's own layer norm."""
    if normalize:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
    y = x if weight is None else weight * x
    return y if bias is None else y + bias


def results(run: Callable[..., Tensor], leaves: dict[str, Tensor | None], dout: Tensor) -> dict[str, Tensor]:
    """Output and the gradient of each leaf that there is."""
    inputs = {name: None if x is None else x.detach().requires_grad_() for name, x in leaves.items()}
    out = run(*inputs.values())
    real = {name: x for name, x in inputs.items() if x is not None}
    grads = torch.autograd.grad(out, list(real.values()), dout)
    for (name, x), dx in zip(real.items(), grads, strict=True):
        assert (dx.dtype, dx.shape, dx.device) == (x.dtype, x.shape, x.device), name
    return {"out": out.detach()} | {f"d{name}": dx for name, dx in zip(real, grads, strict=True)}


@dataclass(frozen=True)
class Problem:
    leaves: dict[str, Tensor | None]
    dout: Tensor
    eps: float = 1e-5
    normalize: bool = True

    @property
    def dtype(self) -> torch.dtype:
        return self.dout.dtype

    def run(self, function: Callable[..., Tensor], **extra: Any) -> dict[str, Tensor]:
        return results(partial(function, eps=self.eps, normalize=self.normalize, **extra), self.leaves, self.dout)

    def expected(self) -> dict[str, Tensor]:
        leaves = {name: None if x is None else x.double() for name, x in self.leaves.items()}
        exact = Problem(leaves, self.dout.double(), self.eps, self.normalize)
        return exact.run(oracle)

    def sizes(self) -> dict[str, float]:
        """Norms of the terms that each result is the sum of, whatever is left of them: what rounding is relative to."""
        x, weight, bias = (None if x is None else x.double() for x in self.leaves.values())
        dout = self.dout.double()
        assert x is not None
        rstd, terms = 1.0, x.abs()
        if self.normalize:
            rstd = ((x - x.mean(dim=-1, keepdim=True)).square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
            terms = terms * rstd + 1
        scale = torch.ones_like(x) if weight is None else weight.abs().expand_as(x)
        shift = torch.zeros_like(x) if bias is None else bias
        found = {
            "out": (scale * terms).norm() + shift.expand_as(x).norm(),
            "dx": (scale * dout * rstd * terms if self.normalize else scale * dout).norm(),
            "dweight": (dout.abs() * terms).reshape(-1, x.shape[-1]).sum(dim=0).norm(),
            "dbias": dout.abs().reshape(-1, x.shape[-1]).sum(dim=0).norm(),
        }
        return {name: size.item() for name, size in found.items()}

    def assert_close(self, actual: dict[str, Tensor]) -> None:
        expected, sizes = self.expected(), self.sizes()
        assert actual.keys() == expected.keys()
        for name, want in expected.items():
            error = (actual[name].double() - want).norm().item()
            rounding = max(RELATIVE_RMS[self.dtype], RELATIVE_RMS[actual[name].dtype])
            allowed = rounding * max(want.norm().item(), sizes[name])
            assert error <= allowed, f"{name}: off by {error:.2e}, allowed {allowed:.2e}"


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "cut out": lambda x: torch.cat([x, x, x], dim=-1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "rows in another order": lambda x: x.movedim(0, -2).contiguous().movedim(-2, 0) if x.ndim > 1 else x,
    "transposed": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "every other number": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "one row for all": lambda x: x[(slice(0, 1),) * (x.ndim - 1)].expand_as(x) if x.numel() else x,
}
"""Ways for the same numbers to lie in memory; in the last all rows are equal."""


def make_problem(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    layout: str = "contiguous",
    dout_layout: str = "contiguous",
    shift: float = 0.0,
    seed: int = 0,
    device: str = DEVICE,
    parameters: tuple[str, ...] = ("weight", "bias"),
    parameter_dtype: torch.dtype | None = None,
    **settings: Any,
) -> Problem:
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float64)

    leaves: dict[str, Tensor | None] = {"x": LAYOUTS[layout]((draw(*shape) + shift).to(dtype))}
    for name in ("weight", "bias"):
        leaves[name] = draw(shape[-1]).to(parameter_dtype or dtype) if name in parameters else None
    return Problem(leaves, LAYOUTS[dout_layout](draw(*shape).to(dtype)), **settings)


@st.composite
def problems(draw: st.DrawFn, dtypes: list[torch.dtype]) -> Problem:
    dtype = draw(st.sampled_from(dtypes))
    leading = draw(st.lists(st.integers(0, 4) | st.just(1), max_size=3))
    return make_problem(
        (*leading, draw(st.integers(1, 40) | st.sampled_from([1, 2, 16, 32]))),
        dtype,
        layout=draw(st.sampled_from(list(LAYOUTS))),
        dout_layout=draw(st.sampled_from(list(LAYOUTS))),
        shift=draw(st.sampled_from([0.0, 3.0])),
        seed=draw(st.integers(0, 2**32)),
        parameters=draw(st.sampled_from([("weight", "bias"), ("weight",), ("bias",), ()])),
        parameter_dtype=draw(st.sampled_from([dtype, torch.float32])),
        eps=draw(st.sampled_from([1e-5, 0.5])),
        normalize=draw(st.booleans()),
    )


@given(data=st.data())
@settings(max_examples=200)
def test_torch_equals_layer_norm(data: st.DataObject) -> None:
    problem = data.draw(problems(DTYPES["torch"]))
    problem.assert_close(problem.run(norm_affine, backend="torch"))


@given(data=st.data())
@settings(max_examples=120)
def test_triton_equals_layer_norm(data: st.DataObject) -> None:
    problem = data.draw(problems(DTYPES["triton"]))
    problem.assert_close(problem.run(norm_affine, backend="triton"))


@BACKENDS
@pytest.mark.parametrize("width", [16, 100, 3000])
def test_tiles_of_their_real_size(backend: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    problem = make_problem((max(3, 5000 // width), width), torch.float32)
    problem.assert_close(problem.run(norm_affine, backend=backend))


# Without eps the interpreter divides by the zero variance of the rows that fill a tile up, which nobody reads.
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@BACKENDS
def test_by_hand(backend: str) -> None:
    """[1, 3] has mean 2 and variance 1; [0, 8] mean 4 and variance 16."""
    x, weight, bias = (
        torch.tensor(values, device=DEVICE) for values in ([[1.0, 3.0], [0.0, 8.0]], [2.0, 10.0], [0.5, 0.0])
    )
    run = partial(norm_affine, eps=0, backend=backend)
    assert run(x).flatten().tolist() == pytest.approx([-1, 1, -1, 1])
    assert run(x, weight, bias).flatten().tolist() == pytest.approx([-1.5, 10, -1.5, 10])
    assert run(x, weight, bias, normalize=False).flatten().tolist() == [2.5, 30, 0.5, 80]
    assert norm_affine(x, eps=9, backend=backend)[1].tolist() == pytest.approx([-0.8, 0.8])  # sqrt(16 + 9) is 5


@BACKENDS
def test_joined_heads_and_single_heads(backend: str) -> None:
    """The norm is over what the last axis holds: all heads together, or each by itself."""
    x = randn(2, 5, 3, 8) * torch.tensor([1.0, 10.0, 100.0], device=DEVICE)[:, None]
    joined = norm_affine(x.flatten(-2), backend=backend)
    assert (joined.var(dim=-1, correction=0) - 1).abs().max() < 1e-4
    single = norm_affine(x, backend=backend)
    assert (single.var(dim=-1, correction=0) - 1).abs().max() < 1e-4
    for head in range(3):
        assert_alike(single[:, :, head], norm_affine(x[:, :, head], backend=backend))


@BACKENDS
@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_variance_of_shifted_rows(backend: str, shift: float) -> None:
    """E[x²] - E[x]² would lose every digit here. Multiples of 1/8 make x exact with and without the shift."""
    x = randn(4, 33).mul(8).round().div(8)
    error = relative_rms(norm_affine(x + shift, backend=backend), oracle(x.double(), None, None))
    assert error < 1e-3  # two units in the last place of a mean of 1000, against a deviation of 1


@BACKENDS
def test_large_float16(backend: str) -> None:
    """Sums and squares of these are beyond float16."""
    problem = make_problem((3, 40), torch.float16, shift=0.0)
    x = problem.leaves["x"]
    assert x is not None
    problem = Problem(problem.leaves | {"x": (x * 1e4).clamp(-6e4, 6e4)}, problem.dout)
    problem.assert_close(problem.run(norm_affine, backend=backend))


@BACKENDS
@pytest.mark.parametrize("normalize", [False, True])
def test_results_are_new_memory(backend: str, normalize: bool) -> None:
    """Also where there is nothing to do: what follows may work in place."""
    x, dout = randn(3, 4).requires_grad_(), randn(3, 4, seed=1)
    out = norm_affine(x, normalize=normalize, backend=backend)
    (dx,) = torch.autograd.grad(out, x, dout)
    assert len({t.untyped_storage().data_ptr() for t in (x, dout, out, dx)}) == 4
    if not normalize:
        assert torch.equal(out, x)
        assert torch.equal(dx, dout)


@BACKENDS
def test_results_do_not_vary(backend: str) -> None:
    problem = make_problem((50, 24), torch.float32)
    first, second = (problem.run(norm_affine, backend=backend) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_rows_of_a_projection_are_not_copied() -> None:
    """Queries, joined or as heads, are a slice of what one matrix product made for queries, keys and values."""
    projected = torch.zeros(2, 5, 3 * 12)
    joined = projected[..., 12:24]
    assert triton_norm._strides(joined, False) == (joined, [0, 36, 0, 1])
    heads = joined.unflatten(-1, (3, 4))
    assert triton_norm._strides(heads, False) == (heads, [0, 36, 4, 3])
    assert triton_norm._strides(heads, True) == (heads, [180, 36, 4, 3])
    dense, strides = triton_norm._strides(heads.transpose(1, 2)[..., ::2], False)
    assert dense.is_contiguous()
    assert strides == [0, 0, 0, 1]


@BACKENDS
@pytest.mark.parametrize("normalize", [False, True])
def test_saves_no_normalised_copy(backend: str, normalize: bool) -> None:
    x, weight, bias = randn(7, 5).requires_grad_(), randn(5).requires_grad_(), randn(5)
    saved = saved_by(lambda: norm_affine(x, weight, bias, normalize=normalize, backend=backend))
    statistics = [t for t in saved if t.data_ptr() not in (x.data_ptr(), weight.data_ptr())]
    assert [tuple(t.shape) for t in statistics] == ([(7,), (7,)] if normalize else [(0,), (0,)])


@BACKENDS
def test_only_some_gradients_are_wanted(backend: str) -> None:
    problem = make_problem((6, 5), torch.float32)
    expected = problem.run(norm_affine, backend=backend)
    for wanted in ({"x"}, {"weight"}, {"bias"}, {"x", "bias"}):
        leaves = {
            name: x.detach().requires_grad_(name in wanted) for name, x in problem.leaves.items() if x is not None
        }
        norm_affine(**leaves, backend=backend).backward(problem.dout)
        for name, x in leaves.items():
            assert (x.grad is not None) == (name in wanted)
            assert x.grad is None or relative_rms(x.grad, expected[f"d{name}"]) < 1e-6, name


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("parameters", [("weight", "bias"), ("weight",), ("bias",), ()])
def test_gradcheck(parameters: tuple[str, ...], normalize: bool) -> None:
    problem = make_problem((2, 3, 5), torch.float64, parameters=parameters, device="cpu")
    leaves = [None if x is None else x.requires_grad_() for x in problem.leaves.values()]
    assert torch.autograd.gradcheck(partial(norm_affine, normalize=normalize), leaves)


# ---- Under transforms ----


def stacked_inputs(backend: str, dims: tuple[int | None, ...], size: int = 3) -> list[Tensor]:
    """Inputs of shapes (2, 4, 6), (6,) and (6,), with a new axis of different entries at each given place, or none."""
    dtype = torch.float64 if backend == "torch" else torch.float32
    inputs = [randn(size, *shape, seed=i, dtype=dtype) for i, shape in enumerate([(2, 4, 6), (6,), (6,)])]
    return [x[0] if dim is None else x.movedim(0, dim).contiguous() for x, dim in zip(inputs, dims, strict=True)]


def loss(x: Tensor, weight: Tensor | None, bias: Tensor | None, **settings: Any) -> Tensor:
    return norm_affine(x, weight, bias, **settings).sin().sum()


DIMS = [(0, None, None), (0, 0, 0), (2, 1, 0), (None, 0, 0), (None, None, 1), (3, 0, None)]


@BACKENDS
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_vmap_equals_a_loop(backend: str, dims: tuple[int | None, ...], normalize: bool) -> None:
    """Stacked replicas: x and parameters are mapped, or some of them; values, vmap(grad) and grad(vmap)."""
    inputs = stacked_inputs(backend, dims)
    run = partial(norm_affine, normalize=normalize, backend=backend)
    one = partial(loss, normalize=normalize, backend=backend)
    assert_alike(vmap(run, dims)(*inputs), looped(run, dims, *inputs))
    mapped = vmap(grad(one, argnums=(0, 1, 2)), dims)(*inputs)
    assert_alike(mapped, looped(grad(one, argnums=(0, 1, 2)), dims, *inputs))
    total = with_grads(lambda *inputs: vmap(run, dims)(*inputs), *inputs)
    assert_alike(total, with_grads(lambda *inputs: looped(run, dims, *inputs), *inputs))


@BACKENDS
@pytest.mark.parametrize("outer", [(0, None, None), (0, 0, None), (None, 0, 0)], ids=str)
@pytest.mark.parametrize("inner", [(0, None, None), (0, 0, None), (0, 0, 0), (None, 0, 0)], ids=str)
def test_vmap_of_vmap(backend: str, outer: tuple[int | None, ...], inner: tuple[int | None, ...]) -> None:
    """Of replicas of replicas; both axes are stacked first, the outer one before the inner one."""
    inputs = []
    for x, *dims in zip(stacked_inputs(backend, (None, None, None)), outer, inner, strict=True):
        axes = [size for size, dim in zip((2, 3), dims, strict=True) if dim is not None]
        factors = 1 + torch.arange(math.prod(axes), dtype=x.dtype, device=DEVICE).reshape(*axes, *[1] * x.ndim) / 6
        inputs.append(x * factors)
    gradient = grad(partial(loss, backend=backend), argnums=(0, 1, 2))
    mapped = vmap(vmap(gradient, inner), outer)(*inputs)
    assert_alike(mapped, looped(lambda *inputs: looped(gradient, inner, *inputs), outer, *inputs))


@BACKENDS
def test_vmap_without_parameters(backend: str) -> None:
    x, *_ = stacked_inputs(backend, (0, None, None))
    for weight, bias in ((None, None), (torch.ones(6, dtype=x.dtype, device=DEVICE), None)):
        run = partial(loss, weight=weight, bias=bias, backend=backend)
        assert_alike(vmap(grad(run))(x), looped(grad(run), (0,), x))


@BACKENDS
def test_jacobians(backend: str) -> None:
    """Only the gradient that comes in is mapped."""
    x, weight, bias = stacked_inputs(backend, (None, None, None))
    x = x[0, :2]
    run = partial(norm_affine, backend=backend)
    expected = jacrev(lambda *inputs: oracle(*inputs), argnums=(0, 1, 2))(x, weight, bias)
    assert_alike(jacrev(run, argnums=(0, 1, 2))(x, weight, bias), expected)


@pytest.mark.parametrize("dims", [(0, None, None), (0, 0, 0)], ids=str)
def test_vmap_over_nothing(dims: tuple[int | None, ...]) -> None:
    inputs = stacked_inputs("torch", dims, size=3)
    inputs = [x if dim is None else x[:0] for x, dim in zip(inputs, dims, strict=True)]
    grads = vmap(grad(loss, argnums=(0, 1, 2)), dims)(*inputs)
    assert [tuple(x.shape) for x in grads] == [(0, 2, 4, 6), (0, 6), (0, 6)]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # forward mode makes torch load TorchScript
@pytest.mark.parametrize("transform", ["jvp", "double backward"])
def test_refuses_other_derivatives(transform: str) -> None:
    x, weight, bias = stacked_inputs("torch", (None, None, None))
    if transform == "jvp":
        with pytest.raises(RuntimeError, match="jvp function"):
            jvp(lambda x: norm_affine(x, weight, bias), (x,), (x,))
        return
    assert_refuses_double_backward(loss, x, weight, bias)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("parameters", [("weight", "bias"), ("bias",), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck(dtype: torch.dtype, parameters: tuple[str, ...], normalize: bool) -> None:
    """Schemas, fake tensors, strides and registration, of both operators, plain and in groups."""
    layout = "transposed" if dtype == torch.float32 else "contiguous"
    problem = make_problem(
        (3, 4, 5),
        dtype,
        layout=layout,
        dout_layout=layout,
        parameters=parameters,
        parameter_dtype=torch.float32,
        device="cpu",
    )
    x, weight, bias = problem.leaves.values()
    mean, rstd = torch.ops.rebased.norm_affine(x, weight, bias, 1e-5, normalize, "auto")[1:]
    for grouped in (False, True):
        if grouped:
            weight, bias = (None if p is None else torch.stack([p, p, p]) for p in (weight, bias))
        backward = (problem.dout, x, mean, rstd, weight, normalize, grouped, "weight" in parameters, True, "auto")
        torch.library.opcheck(torch.ops.rebased.norm_affine_backward.default, backward)
        leaves = [None if p is None else p.detach().clone().requires_grad_() for p in (x, weight, bias)]
        torch.library.opcheck(torch.ops.rebased.norm_affine.default, (*leaves, 1e-5, normalize, "auto"))


compiles = pytest.mark.usefixtures("_forget_compilations")


@compiles
@BACKENDS
@pytest.mark.parametrize("normalize", [True, False])
def test_compile(backend: str, normalize: bool) -> None:
    inputs = stacked_inputs(backend, (None, None, None))
    run = partial(norm_affine, normalize=normalize, backend=backend)
    assert_alike(with_grads(compiled(run), *inputs), with_grads(run, *inputs))


@compiles
def test_compile_of_vmap() -> None:
    """As replicas are trained: autograd is outside, or inside."""
    inputs = stacked_inputs("torch", (0, 0, 0))
    assert_alike(with_grads(compiled(vmap(norm_affine)), *inputs), with_grads(vmap(norm_affine), *inputs))
    gradient = vmap(grad(loss, argnums=(0, 1, 2)))
    assert_alike(compiled(gradient)(*inputs), gradient(*inputs))


@compiles
def test_compile_adapts_to_lengths() -> None:
    _, weight, bias = stacked_inputs("torch", (None, None, None))
    run = compiled(norm_affine, dynamic=True)
    for length in (5, 7, 0):
        x = randn(2, length, 6, dtype=torch.float64)
        with torch.compiler.set_stance("fail_on_recompile" if length == 7 else "default"):
            assert_alike(with_grads(run, x, weight, bias), with_grads(norm_affine, x, weight, bias))


@compiles
def test_export() -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = torch.nn.Parameter(randn(6)), torch.nn.Parameter(randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return norm_affine(x, self.weight, self.bias)

    module = Norm()
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(module, (randn(2, 5, 6),), dynamic_shapes=({1: length},))
    x = randn(2, 9, 6)
    assert_alike(program.module()(x), module(x))


def test_autocast_changes_nothing() -> None:
    """A projection's bfloat16 output meets float32 parameters; what arrives in float32 stays so."""
    for dtype in (torch.bfloat16, torch.float32):
        problem = make_problem((4, 6), dtype, parameter_dtype=torch.float32, device="cpu")
        expected = problem.run(norm_affine)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = problem.run(norm_affine)
        assert actual["out"].dtype == dtype
        assert all(torch.equal(actual[name], expected[name]) for name in expected)


# ---- Bad input ----

X, PARAMETER = torch.zeros(2, 3), torch.zeros(3)


@pytest.mark.parametrize(
    ("error", "message", "inputs", "settings"),
    [
        (TypeError, r"x is a list; it must be a tensor", ([1.0],), {}),
        (ValueError, r"x has dtype torch.int64; it may be float16", (X.long(),), {}),
        (ValueError, r"x has dtype torch.complex64", (X.cfloat(),), {}),
        (ValueError, r"x has shape \(\); it must have a last axis", (X.sum(),), {}),
        (ValueError, r"x has shape \(2, 0\); it must have a last axis that is not empty", (X[:, :0],), {}),
        (TypeError, r"weight is a float; it must be a tensor or None", (X, 1.0), {}),
        (TypeError, r"bias is a int", (X, None, 0), {}),
        (ValueError, r"weight has shape \(2,\); it must be \(3,\)", (X, PARAMETER[:2]), {}),
        (ValueError, r"weight has shape \(1, 3\); it must be \(3,\)", (X, PARAMETER[None]), {}),
        (ValueError, r"bias has shape \(\); it must be \(3,\)", (X, PARAMETER, PARAMETER[0]), {}),
        (ValueError, r"bias has dtype torch.bool", (X, None, PARAMETER.bool()), {}),
        (ValueError, r"weight is on meta, x on cpu", (X, PARAMETER.to("meta")), {}),
        (ValueError, r"eps=-1e-05 must not be negative", (X,), {"eps": -1e-5}),
        (ValueError, r"eps=nan must be finite", (X,), {"eps": float("nan")}),
        (ValueError, r"eps=inf must be finite", (X,), {"eps": float("inf")}),
        (TypeError, r"eps is True; it must be a number", (X,), {"eps": True}),
        (TypeError, r"eps is '1'; it must be a number", (X,), {"eps": "1"}),
        (TypeError, r"normalize is None; it must be True or False", (X,), {"normalize": None}),
        (ValueError, r"backend='cuda' is unknown; it may be 'auto', 'torch', 'triton'", (X,), {"backend": "cuda"}),
        (ValueError, r"backend='triton' .* x has dtype float64; use", (X.double(),), {"backend": "triton"}),
        (
            ValueError,
            rf"backend='triton' takes a last axis up to {MAX_TRITON_WIDTH}, x has {MAX_TRITON_WIDTH + 1}",
            (torch.zeros(1, MAX_TRITON_WIDTH + 1),),
            {"backend": "triton"},
        ),
    ],
)
def test_bad_input(error: type[Exception], message: str, inputs: tuple[Any, ...], settings: dict[str, Any]) -> None:
    with pytest.raises(error, match=f"^{message}"):
        norm_affine(*inputs, **settings)


def test_triton_without_a_gpu_or_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "IS_INTERPRETED", False)
    with pytest.raises(ValueError, match="backend='triton' needs a CUDA device, and x is on cpu"):
        norm_affine(X, backend="triton")


def test_auto_tells_its_choice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="rebased.ops.backends"):
        norm_affine(X)
    assert caplog.messages == ["backend='auto' chose 'torch' for (2, 3) on cpu"]


# ---- On a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (4, 2048, 16, 16),
        (4, 2048, 256),
        (3, 1001, 24),
        (2, 1023, 1000),
        (300, 4096),
        (70, MAX_TRITON_WIDTH),
        (9, 20000),
    ],
    ids=str,
)
def test_large_on_a_gpu(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """By "auto", the last in torch since it is too wide; parameters are float32. All runs give the same bits."""
    monkeypatch.undo()
    for layout in ("contiguous", "cut out"):
        problem = make_problem(shape, dtype, layout=layout, parameter_dtype=torch.float32, device="cuda")
        actual = problem.run(norm_affine)
        problem.assert_close(actual)
        for _ in range(3):
            again = problem.run(norm_affine)
            assert all(torch.equal(again[name], actual[name]) for name in actual)


@pytest.mark.gpu
def test_more_than_32_bits_of_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows of x lie beyond 2³¹ elements."""
    monkeypatch.undo()
    num_rows = 2**21 + 5
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of GPU memory")
    x = torch.zeros(num_rows, 1024, device="cuda", dtype=torch.bfloat16)
    dout = torch.zeros_like(x)
    end = make_problem((7, 1024), torch.bfloat16, parameter_dtype=torch.float32, device="cuda")
    x[-7:], dout[-7:] = end.leaves["x"], end.dout
    found = Problem(end.leaves | {"x": x}, dout).run(norm_affine)
    end.assert_close({name: y[-7:] if name in ("out", "dx") else y for name, y in found.items()})


@pytest.mark.gpu
def test_replicas_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = [
        torch.randn(*shape, device="cuda", generator=generator) for shape in [(40, 8, 128, 64), (40, 64), (40, 64)]
    ]
    gradient = grad(loss, argnums=(0, 1, 2))
    assert_alike(vmap(gradient)(*inputs), looped(gradient, (0, 0, 0), *inputs))
