"""selective_scan under vmap, torch.func, compile, export and autocast, against loops and plain autograd."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from scan_cases import BACKENDS, compiled, random_replicas
from selective_scan_cases import SHAPES, by_steps, make_problem, scan, selective_scan_step, use_small_chunks
from transform_cases import assert_alike, assert_refuses_double_backward, looped, with_grads


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch)


stacked_inputs = partial(random_replicas, SHAPES, {1: Tensor.abs, 2: lambda x: -x.abs()})


def call(*inputs: Tensor, backend: str = "auto") -> tuple[Tensor, Tensor]:
    return scan(*inputs[:5], state=inputs[5] if len(inputs) > 5 else None, backend=backend)


def loss(*inputs: Tensor, backend: str = "auto") -> Tensor:
    y, last = call(*inputs, backend=backend)
    return y.sin().sum() + last.cos().sum()


DIMS = [
    (0, 0, 0, 0, 0, 0),
    (0, None, None, None, None, None),
    (None, None, 0, None, None, None),
    (3, 1, 2, 0, None, 1),
    (None, 2, 1, 3, 2, None),
]


@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_vmap_equals_a_loop(dims: tuple[int | None, ...]) -> None:
    """Stacked replicas: everything is mapped, or some of it; values, vmap(grad) and grad(vmap)."""
    inputs = stacked_inputs("torch", dims)
    assert_alike(vmap(call, dims)(*inputs), looped(call, dims, *inputs))
    gradient = grad(loss, argnums=tuple(range(6)))
    assert_alike(vmap(gradient, dims)(*inputs), looped(gradient, dims, *inputs))
    total = with_grads(lambda *inputs: vmap(call, dims)(*inputs), *inputs)
    assert_alike(total, with_grads(lambda *inputs: looped(call, dims, *inputs), *inputs))


def test_vmap_in_triton() -> None:
    dims = (0, 0, 0, 0, 0, 0)
    inputs = stacked_inputs("triton", dims, size=2)
    gradient = grad(partial(loss, backend="triton"), argnums=tuple(range(6)))
    assert_alike(vmap(gradient, dims)(*inputs), looped(gradient, dims, *inputs))


def test_vmap_of_a_loss_under_autograd() -> None:
    """As replicas are trained: their losses are summed, and autograd is outside. There is no state."""
    inputs = stacked_inputs("torch", (0,) * 6)[:5]

    def total(*inputs: Tensor) -> Tensor:
        return vmap(loss)(*inputs)

    assert_alike(with_grads(total, *inputs), with_grads(lambda *inputs: looped(loss, (0,) * 5, *inputs), *inputs))


def test_vmap_of_vmap() -> None:
    inputs = [torch.stack([x, x / 2]) for x in stacked_inputs("torch", (0,) * 6)]
    inputs[2] = inputs[2][0]  # A is the same for all outer ones
    outer, inner = (0, 0, None, 0, 0, 0), (0,) * 6
    gradient = grad(loss, argnums=tuple(range(6)))
    expected = looped(lambda *inputs: looped(gradient, inner, *inputs), outer, *inputs)
    assert_alike(vmap(vmap(gradient, inner), outer)(*inputs), expected)


def test_vmap_over_nothing() -> None:
    inputs = [x[:0] for x in stacked_inputs("torch", (0,) * 6)]
    grads = vmap(grad(loss, argnums=tuple(range(6))))(*inputs)
    assert [tuple(x.shape) for x in grads] == [(0, *shape) for shape in SHAPES]


def test_jacobians() -> None:
    """Only the gradient that comes in is mapped."""
    inputs = [x[:1, :3] if x.ndim == 3 else x for x in stacked_inputs("torch", (None,) * 6)]
    inputs[5] = stacked_inputs("torch", (None,) * 6)[5][:1]
    argnums = tuple(range(6))
    expected = jacrev(by_steps, argnums=argnums)(*inputs)
    assert_alike(jacrev(call, argnums=argnums)(*inputs), expected)


def test_refuses_double_backward() -> None:
    assert_refuses_double_backward(loss, *stacked_inputs("torch", (None,) * 6))


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck(dtype: torch.dtype, has_state: bool) -> None:
    """Schemas, fake tensors, strides and registration of both operators, with groups."""
    layout = "time first" if dtype == torch.float32 else "cut out"
    cases = [make_problem((2, 9, 3, 4), dtype, seed=seed, layout=layout, device="cpu") for seed in range(2)]
    x, dt, b, c = (torch.stack([p.leaves[name] for p in cases], dim=2) for name in ("x", "dt", "b", "c"))
    A = torch.stack([p.leaves["A"] for p in cases])
    state = torch.stack([p.leaves["state"] for p in cases], dim=1) if has_state else None
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in (x, dt, A, b, c, state)]
    torch.library.opcheck(torch.ops.rebased.selective_scan.default, (*leaves, 4, "auto"))
    y, last, states = torch.ops.rebased.selective_scan(x, dt, A, b, c, state, 4, "auto")
    for dy, dlast in ((y, None), (None, last), (y, last)):
        inputs = dy, dlast, x, dt, A, b, c, states, 4, "auto"
        torch.library.opcheck(torch.ops.rebased.selective_scan_backward.default, inputs)


compiles = pytest.mark.usefixtures("_forget_compilations")


@compiles
@BACKENDS
def test_compile(backend: str) -> None:
    inputs = stacked_inputs(backend, (None,) * 6)
    run = partial(call, backend=backend)
    assert_alike(with_grads(compiled(run), *inputs), with_grads(run, *inputs))


@compiles
def test_compile_of_vmap() -> None:
    """As replicas are trained: autograd is outside, or inside."""
    inputs = stacked_inputs("torch", (0,) * 6)
    assert_alike(with_grads(compiled(vmap(call)), *inputs), with_grads(vmap(call), *inputs))
    gradient = vmap(grad(loss, argnums=tuple(range(6))))
    assert_alike(compiled(gradient)(*inputs), gradient(*inputs))


@compiles
def test_compile_adapts_to_lengths() -> None:
    run = compiled(call, dynamic=True)
    for length in (9, 21, 6):
        inputs = list(make_problem((2, length, 3, 4), torch.float64).leaves.values())
        with torch.compiler.set_stance("fail_on_recompile" if length == 21 else "default"):
            assert_alike(with_grads(run, *inputs), with_grads(call, *inputs))


@compiles
def test_export() -> None:
    class Scan(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            return call(*inputs)

    def inputs(length: int) -> tuple[Tensor, ...]:
        return tuple(make_problem((2, length, 3, 4)).leaves.values())

    length = torch.export.Dim("length", min=2, max=64)
    shapes = tuple({1: length} if i in (0, 1, 3, 4) else None for i in range(6))
    program = torch.export.export(Scan(), inputs(9), dynamic_shapes=(shapes,))
    assert_alike(program.module()(*inputs(20)), call(*inputs(20)))


def test_autocast_changes_nothing() -> None:
    """A projection's bfloat16 output meets a float32 A; what arrives in float32 stays so."""
    for dtype in (torch.bfloat16, torch.float32):
        problem = make_problem((2, 9, 3, 4), dtype, other_dtype=torch.float32, device="cpu")
        expected = problem.run(scan)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = problem.run(scan)
        assert all(torch.equal(actual[name], expected[name]) for name in expected)
        token = {name: x[:, 0] if x.ndim == 3 and name != "state" else x for name, x in problem.leaves.items()}
        expected_y, expected_state = selective_scan_step(**token)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y, state = selective_scan_step(**token)
        assert (y.dtype, state.dtype) == (dtype, torch.float32)
        assert torch.equal(y, expected_y)
        assert torch.equal(state, expected_state)


# ---- On a GPU ----


@pytest.mark.gpu
def test_replicas_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    problems = [make_problem((4, 150, 40, 16), seed=seed).leaves.values() for seed in range(5)]
    inputs = [torch.stack(xs) for xs in zip(*problems, strict=True)]
    gradient = grad(loss, argnums=tuple(range(6)))
    assert_alike(vmap(gradient)(*inputs), looped(gradient, (0,) * 6, *inputs))
