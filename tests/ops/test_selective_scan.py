"""selective_scan against a loop over time in float64: in plain torch, and in Triton's interpreter or on a GPU."""

import logging
from functools import partial
from typing import Any

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from rebased.ops import backends
from rebased.ops.triton import selective_scan as triton_scan
from scan_cases import BACKENDS, BATCH_SIZES, DEVICE, DTYPES
from selective_scan_cases import (
    SHAPES,
    make_problem,
    module,
    problems,
    scan,
    selective_scan,
    selective_scan_step,
    use_small_chunks,
)
from tolerances import assert_close_in
from transform_cases import assert_alike, saved_by


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch)


@given(data=st.data())
@settings(max_examples=120)
def test_torch_equals_the_definition(data: st.DataObject) -> None:
    problem = data.draw(problems(DTYPES["torch"]))
    problem.assert_close(problem.run(partial(scan, backend="torch")))


@given(data=st.data())
@settings(max_examples=15)
def test_triton_equals_the_definition(data: st.DataObject) -> None:
    problem = data.draw(problems(DTYPES["triton"], max_batch=2, max_len=20))
    problem.assert_close(problem.run(partial(scan, backend="triton")))


WIDER = {
    "tiles that channels and tokens do not fill": ((1, 10, 17, 3), torch.float32, None),
    "more states": ((1, 3, 9, 20), torch.float32, None),
    "whole tiles of words": ((1, 12, 32, 16), torch.float32, None),
    "whole tiles of words of short numbers": ((1, 12, 32, 16), torch.float16, None),
    "words": ((1, 11, 64, 7), torch.float16, None),
    "dt in float32, as in training": ((1, 12, 32, 16), torch.float16, torch.float32),
    "words, dt in float32": ((1, 11, 64, 7), torch.float16, torch.float32),
}
"""Sizes, the dtype, and that of dt and A where it is another."""


@pytest.mark.parametrize(("outer", "steps"), [(2, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize("case", WIDER)
def test_wider_programs(case: str, outer: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of more channels, as there are when programs are many."""
    sizes, dtype, other_dtype = WIDER[case]
    most = {"FORWARD_OUTER": outer, "BACKWARD_OUTER": outer}
    for name, value in ({"ENOUGH_PROGRAMS": 1, "THREAD_STATES": steps * 4 * outer} | most).items():
        monkeypatch.setattr(triton_scan, name, value)
    problem = make_problem(sizes, dtype, other_dtype=other_dtype)
    problem.assert_close(problem.run(partial(scan, backend="triton")))


def test_which_tiles_are_whole_and_of_which_words() -> None:
    def plan(
        sizes: tuple[int, int, int, int], dtype: torch.dtype, *, dt_dtype: torch.dtype | None = None, cut: int = 0
    ) -> tuple[bool, int, int]:
        leaves = make_problem(sizes, dtype, other_dtype=dt_dtype).leaves
        rows = {name.upper(): leaves[name][:, None, :, cut:].movedim(1, 2) for name in ("x", "dt")}
        A = leaves["A"][None, cut:]
        constants = dict(triton_scan._Plan(rows["X"], A, 8, triton_scan.Tile(4, 2), rows, {}).constants)
        return bool(constants["WHOLE"]), constants["X_WORD"], constants["DT_WORD"]

    assert plan((1, 4, 32, 16), torch.bfloat16) == (True, 4, 4)
    assert plan((1, 4, 32, 16), torch.bfloat16, dt_dtype=torch.float32) == (True, 4, 2)
    assert plan((1, 5, 32, 16), torch.float16) == (False, 4, 4)  # an odd token
    assert plan((1, 4, 64, 5), torch.float16) == (False, 4, 4)  # states fill half of a tile
    assert plan((1, 4, 32, 16), torch.float32) == (True, 2, 2)
    assert plan((1, 4, 31, 16), torch.float16) == (False, 1, 1)
    assert plan((1, 4, 33, 16), torch.float16, cut=1) == (True, 1, 1)  # they are not at whole words


@pytest.mark.parametrize("sizes", [(2, 31, 3, 4), (2, 32, 3, 4), (1, 33, 3, 4), (3, 100, 5, 16)], ids=str)
def test_chunks_of_their_real_size(sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    problem = make_problem(sizes, torch.float64)
    problem.assert_close(problem.run(scan))


@BACKENDS
def test_by_hand(backend: str) -> None:
    """With dt·A = ln 1/2 the state halves, with dt·A = ln 1/4 it is quartered; dt·x·b are 1, 2 and 4."""
    dt = torch.tensor([1.0, 1.0, 2.0], device=DEVICE)[None, :, None]
    x = torch.tensor([1.0, 2.0, 2.0], device=DEVICE)[None, :, None]
    A = -torch.tensor([[2.0]], device=DEVICE).log()
    ones = torch.ones(1, 3, 1, device=DEVICE)
    state = torch.full((1, 1, 1), 8.0, device=DEVICE)
    y, last = scan(x, dt, A, ones, 10 * ones, state=state, backend=backend)
    assert torch.equal(selective_scan(x, dt, A, ones, 10 * ones, state=state, backend=backend), y)
    assert y.flatten().tolist() == pytest.approx([50, 45, 51.25])  # 8/2 + 1, 5/2 + 2, 4.5/4 + 4
    assert last.item() == pytest.approx(5.125)


@pytest.mark.parametrize(("backend", "border"), [*(("torch", border) for border in (1, 8, 11, 18)), ("triton", 7)])
def test_pieces_are_the_whole(backend: str, border: int) -> None:
    """Outputs, last state and gradients, which flow through the state that is passed on."""
    dtype = torch.float64 if backend == "torch" else torch.float32
    problem = make_problem((BATCH_SIZES[backend], 19, 9, 3), dtype)

    def in_pieces(x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        ys = []
        for at in (slice(border), slice(border, None)):
            y, state = scan(x[:, at], dt[:, at], A, b[:, at], c[:, at], state=state, backend=backend)
            ys.append(y)
        return torch.cat(ys, dim=1), state

    problem.assert_close(problem.run(in_pieces))


@BACKENDS
def test_no_step_leaves_the_state(backend: str) -> None:
    """Not a bit changes, in a sequence of such tokens as at the end of another one."""
    leaves = make_problem((BATCH_SIZES[backend], 21, 9, 3)).leaves
    run = partial(scan, backend=backend)
    _, last = run(**leaves | {"dt": torch.zeros_like(leaves["dt"])})
    assert torch.equal(last, leaves["state"])
    cut = {name: x if name in ("A", "state") else x[:, :14] for name, x in leaves.items()}
    dt = leaves["dt"].clone()
    dt[:, 14:] = 0
    assert torch.equal(run(**leaves | {"dt": dt})[1], run(**cut)[1])


@BACKENDS
def test_tokens_without_a_step_might_not_be_there(backend: str) -> None:
    leaves = make_problem((BATCH_SIZES[backend], 21, 9, 3)).leaves
    there = torch.rand(21, generator=torch.Generator().manual_seed(0)) < 0.5
    dt = leaves["dt"] * there.to(DEVICE)[None, :, None]
    y, last = scan(**leaves | {"dt": dt}, backend=backend)
    kept = {name: x if name in ("A", "state") else x[:, there] for name, x in leaves.items()}
    expected_y, expected_last = scan(**kept, backend=backend)
    assert_alike((y[:, there], last), (expected_y, expected_last))


def test_steps_are_the_scan() -> None:
    def one_by_one(x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        ys = []
        for t in range(x.shape[1]):
            y, state = selective_scan_step(x[:, t], dt[:, t], A, b[:, t], c[:, t], state)
            ys.append(y)
        return torch.stack(ys, dim=1), state

    for dtype in DTYPES["torch"]:
        problem = make_problem((2, 12, 3, 4), dtype)
        problem.assert_close(problem.run(one_by_one))


@BACKENDS
@pytest.mark.parametrize("scale", [1e-6, 1e3, 1e6])
def test_extreme_steps(backend: str, scale: float) -> None:
    """From states that hardly fade to ones that are gone after a token: exp(dt·A) may well be zero."""
    problem = make_problem((BATCH_SIZES[backend], 11, 9, 3))
    problem.leaves["A"].mul_(scale)
    actual = problem.run(partial(scan, backend=backend))
    assert all(x.isfinite().all() for x in actual.values())
    problem.assert_close(actual)


@BACKENDS
def test_states_beyond_float16(backend: str) -> None:
    leaves = make_problem((1, 19, 9, 3), torch.float16).leaves
    large = {"state": leaves["state"] * 1e7, "A": leaves["A"] / 100, "c": torch.zeros_like(leaves["c"])}
    _, last = scan(**leaves | large, backend=backend)
    assert last.isfinite().all()
    assert last.abs().max() > 1e5


def test_saves_few_states() -> None:
    """The inputs themselves, and states before and after each chunk."""
    leaves = {name: x.requires_grad_() for name, x in make_problem((2, 20, 3, 4)).leaves.items()}
    saved = saved_by(lambda: selective_scan(**leaves))
    inputs = {x.data_ptr() for x in leaves.values()}
    assert [tuple(x.shape) for x in saved if x.data_ptr() not in inputs] == [(2, 4, 1, 3, 4)]


def test_no_tensor_of_all_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the batch size and the number of groups, a chunk's tensors stay small."""
    sizes: list[int] = []
    scan = module.linear_recurrence_

    def spy(decay: Tensor, inputs: Tensor, *rest: Any, **settings: Any) -> Tensor:
        sizes.append(inputs.numel())
        return scan(decay, inputs, *rest, **settings)

    monkeypatch.setattr(module, "linear_recurrence_", spy)
    leaves = [x.expand(3, *x.shape).clone() for x in make_problem((5, 10, 2, 4), has_state=False).leaves.values()]
    # A chunk of one group and one sequence has 8 · 2 · 4 numbers: that many, all groups, two sequences.
    for limit, expected in ((100, 64), (300, 3 * 64), (500, 2 * 3 * 64)):
        monkeypatch.setattr(module, "PIECE_NUMBERS", limit)
        vmap(grad(lambda *inputs: selective_scan(*inputs, backend="torch").sum()))(*leaves)
        assert max(sizes) == expected
        sizes.clear()


def test_only_some_gradients_are_wanted() -> None:
    problem = make_problem((2, 9, 3, 4))
    expected = problem.run(scan)
    for wanted in ({"x"}, {"A"}, {"state"}, {"dt", "c"}):
        leaves = {name: x.detach().requires_grad_(name in wanted) for name, x in problem.leaves.items()}
        torch.autograd.backward(scan(**leaves), (problem.dy, problem.dlast))
        for name, x in leaves.items():
            assert (x.grad is not None) == (name in wanted)
            assert x.grad is None or torch.equal(x.grad, expected[f"d{name}"]), name


@BACKENDS
def test_results_do_not_vary(backend: str) -> None:
    problem = make_problem((BATCH_SIZES[backend], 20, 9, 3))
    first, second = (problem.run(partial(scan, backend=backend)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_gradcheck() -> None:
    leaves = [x.requires_grad_() for x in make_problem((2, 10, 2, 3), torch.float64, device="cpu").leaves.values()]
    assert torch.autograd.gradcheck(lambda *inputs: scan(*inputs[:5], state=inputs[5]), leaves)


@pytest.mark.parametrize("sizes", [(0, 5, 2, 3), (2, 0, 2, 3)], ids=str)
def test_nothing_to_do(sizes: tuple[int, int, int, int]) -> None:
    problem = make_problem(sizes)
    actual = problem.run(scan)
    assert actual["y"].shape == sizes[:3]
    assert torch.equal(actual["last"], problem.leaves["state"])
    assert torch.equal(actual["dstate"], problem.dlast)


# ---- Bad input ----

GOOD = dict(zip(("x", "dt", "A", "b", "c", "state"), (torch.zeros(shape) for shape in SHAPES), strict=True))


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (TypeError, r"x is a list; it must be a tensor", {"x": [1.0]}),
        (ValueError, r"x has dtype torch.int64; it may be float16", {"x": GOOD["x"].long()}),
        (ValueError, r"x has shape \(2, 9\); it must have 3 axes \(B, T, M\)", {"x": GOOD["x"][..., 0]}),
        (ValueError, r"x has shape \(2, 9, 0\); its last axis must not be empty", {"x": GOOD["x"][..., :0]}),
        (
            ValueError,
            r"dt has shape \(2, 9, 1\); it must be \(2, 9, 3\) to go with x and A",
            {"dt": GOOD["dt"][..., :1]},
        ),
        (ValueError, r"A has shape \(2, 4\); it must be \(3, 4\)", {"A": GOOD["A"][:2]}),
        (ValueError, r"A has shape \(3,\); it must have 2 axes \(M, N\)", {"A": GOOD["A"][:, 0]}),
        (ValueError, r"A has shape \(3, 0\); its last axis must not be empty", {"A": GOOD["A"][:, :0]}),
        (ValueError, r"b has shape \(2, 9, 3\); it must be \(2, 9, 4\)", {"b": GOOD["b"][..., :3]}),
        (ValueError, r"c has shape \(2, 8, 4\); it must be \(2, 9, 4\)", {"c": GOOD["c"][:, :8]}),
        (ValueError, r"c has dtype torch.bool", {"c": GOOD["c"].bool()}),
        (ValueError, r"b is on meta, x and A on cpu", {"b": GOOD["b"].to("meta")}),
        (ValueError, r"state has shape \(1, 3, 4\); it must be \(2, 3, 4\)", {"state": GOOD["state"][:1]}),
        (
            ValueError,
            r"state has dtype torch.float16; these inputs need torch.float32",
            {"state": GOOD["state"].half()},
        ),
        (ValueError, r"state has dtype torch.float64; these inputs need", {"state": GOOD["state"].double()}),
        (TypeError, r"state is a tuple; it must be a tensor", {"state": (1,)}),
        (TypeError, r"return_state is 1; it must be True or False", {"return_state": 1}),
    ],
)
def test_bad_input(error: type[Exception], message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(error, match=f"^{message}"):
        selective_scan(**GOOD | changes)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ValueError, r"x has shape \(2, 9, 3\); it must have 2 axes \(B, M\)", {"x": GOOD["x"]}),
        (ValueError, r"dt has shape \(1, 3\); it must be \(2, 3\)", {"dt": GOOD["dt"][:1, 0]}),
        (TypeError, r"state is None; it must be a tensor", {"state": None}),
        (ValueError, r"state has dtype torch.float64", {"state": GOOD["state"].double()}),
    ],
)
def test_bad_step(error: type[Exception], message: str, changes: dict[str, Any]) -> None:
    token = {name: x[:, 0] if name in ("x", "dt", "b", "c") else x for name, x in GOOD.items()}
    with pytest.raises(error, match=f"^{message}"):
        selective_scan_step(**token | changes)


def test_bad_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^backend='cuda' is unknown; it may be 'auto', 'torch', 'triton'"):
        selective_scan(**GOOD, backend="cuda")
    doubles = {name: x.double() for name, x in GOOD.items()}
    with pytest.raises(ValueError, match=r"^backend='triton' computes in float32, and x has dtype float64; use"):
        selective_scan(**doubles, backend="triton")
    wide = [torch.zeros(*shape[:-1], module.MAX_TRITON_STATE_DIM + 1) for shape in SHAPES[2:5]]
    with pytest.raises(ValueError, match=r"^backend='triton' takes states up to"):
        selective_scan(GOOD["x"], GOOD["dt"], *wide, backend="triton")
    monkeypatch.setattr(backends, "IS_INTERPRETED", False)
    with pytest.raises(ValueError, match="backend='triton' needs a CUDA device, and x is on cpu"):
        selective_scan(**GOOD, backend="triton")


@pytest.mark.skipif(DEVICE == "cuda", reason="kernels are not interpreted")
def test_triton_without_tuples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(triton.language, "tuple")
    with pytest.raises(ValueError, match=r"^backend='triton' needs Triton 3.3 or later; use 'auto' or 'torch'"):
        selective_scan(**GOOD, backend="triton")


def test_auto_tells_its_choice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="rebased.ops.backends"):
        selective_scan(**GOOD)
    assert caplog.messages == ["backend='auto' chose 'torch' for (2, 9, 1, 3) on cpu"]


# ---- On a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "sizes", [(8, 1000, 200, 16), (3, 130, 50, 5), (64, 300, 1000, 16), (2, 200, 20, 128)], ids=str
)
def test_large_on_a_gpu(sizes: tuple[int, int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """By "auto"; dt and A are float32. All runs give the same bits."""
    monkeypatch.undo()
    problem = make_problem(sizes, dtype, other_dtype=torch.float32, layout="cut out")
    actual = problem.run(scan)
    expected = problem.to(torch.float64).run(partial(scan, backend="torch"))
    in_torch = problem.run(partial(scan, backend="torch"))
    assert_close_in(dtype, actual, expected, in_torch)
    for _ in range(3):
        again = problem.run(scan)
        assert all(torch.equal(again[name], actual[name]) for name in actual)
