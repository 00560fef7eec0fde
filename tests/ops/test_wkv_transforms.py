"""wkv under vmap, torch.func, compile, export and autocast, against loops and plain autograd."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from scan_cases import BACKENDS, DEVICE, compiled, random_replicas
from transform_cases import assert_alike, assert_refuses_double_backward, looped, with_grads
from wkv_cases import Results, WKVState, by_sums, call, make_problem, use_small_chunks, wkv, wkv_step


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch)


SHAPES = [(2, 9, 3), (2, 9, 3), (3,), (3,), (2, 3), (2, 3), (2, 3)]
"""Of k, v, decay, bonus and a state."""


stacked_inputs = partial(random_replicas, SHAPES, {2: Tensor.exp, 5: Tensor.exp})


MASK = torch.tensor([[0, 1, 1, 0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 1, 1, 1]], dtype=torch.bool, device=DEVICE)


def apply(*inputs: Tensor, key_mask: Tensor | None = None, backend: str = "auto") -> Results:
    state = dict(zip(WKVState._fields, inputs[4:], strict=False))
    return call(*inputs[:4], key_mask=key_mask, backend=backend, **state)


def loss(*inputs: Tensor, key_mask: Tensor | None = None, backend: str = "auto") -> Tensor:
    return torch.stack([x.sin().sum() for x in apply(*inputs, key_mask=key_mask, backend=backend)]).sum()


ALL = (0,) * 7
ARGNUMS = tuple(range(7))
DIMS = [
    ALL,
    (0, *(None,) * 6),
    (None, None, 0, None, None, None, None),
    (3, 1, 1, 0, 2, 1, 0),
    (None, 2, None, 1, None, 0, None),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_vmap_equals_a_loop(dims: tuple[int | None, ...], masked: bool) -> None:
    """Stacked replicas: everything is mapped, or some of it; values, vmap(grad) and grad(vmap)."""
    inputs = stacked_inputs("torch", dims)
    mask = MASK if masked else None
    run, gradient = partial(apply, key_mask=mask), grad(partial(loss, key_mask=mask), argnums=ARGNUMS)
    assert_alike(vmap(run, dims)(*inputs), looped(run, dims, *inputs))
    assert_alike(vmap(gradient, dims)(*inputs), looped(gradient, dims, *inputs))
    total = with_grads(lambda *inputs: vmap(run, dims)(*inputs), *inputs)
    assert_alike(total, with_grads(lambda *inputs: looped(run, dims, *inputs), *inputs))


def test_vmap_of_masks() -> None:
    inputs = stacked_inputs("torch", (None,) * 7)
    masks = torch.stack([MASK, MASK.flip(1), MASK.flip(0)])
    gradient = grad(lambda mask, *inputs: loss(*inputs, key_mask=mask), argnums=tuple(range(1, 8)))
    dims = (0, *(None,) * 7)
    assert_alike(vmap(gradient, dims)(masks, *inputs), looped(gradient, dims, masks, *inputs))


def test_vmap_in_triton() -> None:
    inputs = stacked_inputs("triton", ALL, size=2)
    gradient = grad(partial(loss, key_mask=MASK, backend="triton"), argnums=ARGNUMS)
    assert_alike(vmap(gradient)(*inputs), looped(gradient, ALL, *inputs))


def test_vmap_of_a_loss_under_autograd() -> None:
    """As replicas are trained: their losses are summed, and autograd is outside. There is no state."""
    inputs = stacked_inputs("torch", ALL)[:4]
    actual = with_grads(lambda *inputs: vmap(loss)(*inputs), *inputs)
    assert_alike(actual, with_grads(lambda *inputs: looped(loss, (0,) * 4, *inputs), *inputs))


def test_vmap_of_vmap() -> None:
    inputs = [torch.stack([x, x / 2]) for x in stacked_inputs("torch", ALL)]
    inputs[2] = inputs[2][0]  # the decay is the same for all outer ones
    outer = (0, 0, None, 0, 0, 0, 0)
    gradient = grad(loss, argnums=ARGNUMS)
    expected = looped(lambda *inputs: looped(gradient, ALL, *inputs), outer, *inputs)
    assert_alike(vmap(vmap(gradient), outer)(*inputs), expected)


def test_vmap_over_nothing() -> None:
    inputs = [x[:0] for x in stacked_inputs("torch", ALL)]
    grads = vmap(grad(loss, argnums=ARGNUMS))(*inputs)
    assert [tuple(x.shape) for x in grads] == [(0, *shape) for shape in SHAPES]


def test_jacobians() -> None:
    """Only the gradient that comes in is mapped."""
    inputs = [x[:1] if x.ndim > 1 else x for x in stacked_inputs("torch", (None,) * 7)]

    def expected(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, *state: Tensor) -> Results:
        scale = state[2].exp()
        mask = torch.ones(1, 9, dtype=torch.bool, device=DEVICE)
        return by_sums(k, v, decay, bonus, state[0] * scale, state[1] * scale, mask)

    assert_alike(jacrev(apply, argnums=ARGNUMS)(*inputs), jacrev(expected, argnums=ARGNUMS)(*inputs))


def test_refuses_double_backward() -> None:
    assert_refuses_double_backward(loss, *stacked_inputs("torch", (None,) * 7))


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck(dtype: torch.dtype, masked: bool) -> None:
    """Schemas, fake tensors, strides and registration of both operators, with groups; with a state and without."""
    layout = "time first" if dtype == torch.float32 else "cut out"
    cases = [make_problem((2, 9, 3), dtype, seed=seed, layout=layout, device="cpu").leaves for seed in range(2)]
    k, v = (torch.stack([leaves[name] for leaves in cases], dim=2) for name in ("k", "v"))
    decay, bonus = (torch.stack([leaves[name] for leaves in cases]) for name in ("decay", "bonus"))
    mask = torch.stack([MASK, MASK.flip(1)], dim=2).cpu() if masked else None
    state = [torch.stack([leaves[name] for leaves in cases], dim=1) if masked else None for name in WKVState._fields]
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in (k, v, decay, bonus, *state)]
    torch.library.opcheck(torch.ops.rebased.wkv.default, (*leaves[:4], mask, *leaves[4:], 4, "auto"))
    out, numerator, denominator, _, kept = torch.ops.rebased.wkv(k, v, decay, bonus, mask, *state, 4, "auto")
    for douts in ((out, None, None), (None, numerator, None), (out, numerator, denominator)):
        inputs = *douts, k, v, decay, bonus, mask, kept, 4, "auto"
        torch.library.opcheck(torch.ops.rebased.wkv_backward.default, inputs)


compiles = pytest.mark.usefixtures("_forget_compilations")


@compiles
@BACKENDS
def test_compile(backend: str) -> None:
    inputs = stacked_inputs(backend, (None,) * 7)
    run = partial(apply, key_mask=MASK, backend=backend)
    assert_alike(with_grads(compiled(run), *inputs), with_grads(run, *inputs))


@compiles
def test_compile_of_vmap() -> None:
    """As replicas are trained: autograd is outside, or inside."""
    inputs = stacked_inputs("torch", ALL)
    assert_alike(with_grads(compiled(vmap(apply)), *inputs), with_grads(vmap(apply), *inputs))
    gradient = vmap(grad(loss, argnums=ARGNUMS))
    assert_alike(compiled(gradient)(*inputs), gradient(*inputs))


@compiles
def test_compile_adapts_to_lengths() -> None:
    run = compiled(apply, dynamic=True)
    for length in (9, 21, 6):
        inputs = list(make_problem((2, length, 3), torch.float64).leaves.values())
        with torch.compiler.set_stance("fail_on_recompile" if length == 21 else "default"):
            assert_alike(with_grads(run, *inputs), with_grads(apply, *inputs))


@compiles
def test_export() -> None:
    class Average(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> tuple[Tensor, Any]:
            return wkv(*inputs, return_state=True)

    def inputs(length: int) -> tuple[Tensor, ...]:
        return tuple(make_problem((2, length, 3), has_state=False).leaves.values())

    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(Average(), inputs(9), dynamic_shapes=(({1: length}, {1: length}, None, None),))
    assert_alike(program.module()(*inputs(20)), wkv(*inputs(20), return_state=True))


def test_autocast_changes_nothing() -> None:
    """Projections' bfloat16 outputs meet float32 parameters; what arrives in float32 stays so."""
    for dtype in (torch.bfloat16, torch.float32):
        problem = make_problem((2, 9, 3), dtype, parameter_dtype=torch.float32, device="cpu")
        expected = problem.run(call)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            actual = problem.run(call)
        assert all(torch.equal(actual[name], expected[name]) for name in expected)
        k, v, decay, bonus, *state = problem.leaves.values()
        token = k[:, 0], v[:, 0], decay, bonus, WKVState(*state)
        expected_out, expected_state = wkv_step(*token)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, last = wkv_step(*token)
        assert (out.dtype, last.numerator.dtype) == (dtype, torch.float32)
        assert all(map(torch.equal, (out, *last), (expected_out, *expected_state)))


# ---- On a GPU ----


@pytest.mark.gpu
def test_replicas_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    problems = [make_problem((4, 300, 40), seed=seed).leaves.values() for seed in range(5)]
    inputs = [torch.stack(xs) for xs in zip(*problems, strict=True)]
    gradient = grad(loss, argnums=ARGNUMS)
    assert_alike(vmap(gradient)(*inputs), looped(gradient, ALL, *inputs))
