"""wkv against its two sums in float64, and against a loop over time: in plain torch, and in Triton's interpreter."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rebased.ops import backends, wkv_chunk
from rebased.ops.triton.rows import with_rows
from scan_cases import BACKENDS, BATCH_SIZES, DEVICE, DTYPES
from tolerances import assert_close_in, relative_rms
from transform_cases import assert_alike, saved_by
from wkv_cases import (
    Problem,
    Results,
    WKVState,
    by_steps,
    by_sums,
    call,
    initial_wkv_state,
    make_problem,
    problems,
    undivided,
    use_small_chunks,
    wkv,
    wkv_step,
)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_chunks(monkeypatch)


@given(data=st.data())
@settings(max_examples=120)
def test_torch_equals_the_definition(data: st.DataObject) -> None:
    problem = data.draw(problems(DTYPES["torch"]))
    problem.assert_close(problem.run(partial(call, backend="torch")))


@given(data=st.data())
@settings(max_examples=15)
def test_triton_equals_the_definition(data: st.DataObject) -> None:
    problem = data.draw(problems(DTYPES["triton"], max_batch=2, max_len=20))
    problem.assert_close(problem.run(partial(call, backend="triton")))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [127, 128, 129, 300])
def test_chunks_of_their_real_size(length: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    problem = make_problem((2, length, 3), torch.float64, masked=masked)
    problem.assert_close(problem.run(call))


@given(data=st.data())
@settings(max_examples=30)
def test_the_two_oracles_agree(data: st.DataObject) -> None:
    problem = data.draw(problems([torch.float64]))

    def run(k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, key_mask: Tensor | None, **state: Tensor) -> Results:
        if key_mask is None:
            key_mask = torch.ones(k.shape[:2], dtype=torch.bool, device=DEVICE)
        first = tuple(state.values()) or tuple(initial_wkv_state(k.shape[0], k.shape[2], device=DEVICE, dtype=k.dtype))
        out, (numerator, denominator, maximum) = by_steps(k, v, decay, bonus, first, key_mask)
        return out, numerator * maximum.exp(), denominator * maximum.exp()

    problem.assert_close(problem.run(run))


@BACKENDS
def test_by_hand(backend: str) -> None:
    """With decay ln 2 weights halve, and keys ln n weigh n; a bonus of ln 3 triples a token's own weight."""
    k = torch.tensor([2.0, 6.0, 1.0], device=DEVICE).log()[None, :, None]
    v = torch.tensor([1.0, 4.0, 10.0], device=DEVICE)[None, :, None]
    decay, bonus = (torch.tensor([x], device=DEVICE).log() for x in (2.0, 3.0))
    out, state = wkv(k, v, decay, bonus, return_state=True, backend=backend)
    assert torch.equal(wkv(k, v, decay, bonus, backend=backend), out)
    # 1; (2·1 + 18·4) / 20; (1·1 + 6·4 + 3·10) / 10
    assert out.flatten().tolist() == pytest.approx([1, 3.7, 5.5])
    numerator, denominator = undivided(state)
    assert numerator.item() == pytest.approx(22.5)  # (1 + 24) / 2 + 10
    assert denominator.item() == pytest.approx(4.5)  # (1 + 6) / 2 + 1


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("backend", "border"), [*(("torch", border) for border in (1, 8, 11, 18)), ("triton", 7)])
def test_pieces_are_the_whole(backend: str, border: int, masked: bool) -> None:
    """Outputs, sums and gradients, which flow through the state that is passed on, whatever its maximum is."""
    sizes, dtype = (BATCH_SIZES[backend], 19, 9), torch.float64 if backend == "torch" else torch.float32
    problem = make_problem(sizes, dtype, masked=masked)

    def in_pieces(
        k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, key_mask: Tensor | None, **first: Tensor
    ) -> Results:
        state, outs = WKVState(**first), []
        for at in (slice(border), slice(border, None)):
            mask = None if key_mask is None else key_mask[:, at]
            out, state = wkv(
                k[:, at], v[:, at], decay, bonus, key_mask=mask, state=state, return_state=True, backend=backend
            )
            outs.append(out)
        return torch.cat(outs, dim=1), *undivided(state)

    problem.assert_close(problem.run(in_pieces))


def test_steps_are_the_whole() -> None:
    def one_by_one(
        k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, key_mask: Tensor | None, **first: Tensor
    ) -> Results:
        state = WKVState(**first) if first else initial_wkv_state(*k[:, 0].shape, device=DEVICE, dtype=k.dtype)
        outs = []
        for t in range(k.shape[1]):
            out, state = wkv_step(k[:, t], v[:, t], decay, bonus, state)
            outs.append(out)
        return torch.stack(outs, dim=1), *undivided(state)

    for dtype in DTYPES["torch"]:
        for has_state in (False, True):
            # Autograd sums the parameters' gradients of all steps, which half precision is not up to.
            parameter_dtype = torch.promote_types(dtype, torch.float32)
            problem = make_problem((2, 12, 3), dtype, has_state=has_state, parameter_dtype=parameter_dtype)
            problem.assert_close(problem.run(one_by_one))


@BACKENDS
def test_the_maximum_of_a_state_is_arbitrary(backend: str) -> None:
    """Sums may be divided by anything that leaves them representable."""
    problem = make_problem((BATCH_SIZES[backend], 11, 9))
    shift = torch.linspace(-3, 5.5, 9, device=DEVICE)
    names = "numerator", "denominator", "maximum"
    numerator, denominator, maximum = (problem.leaves[name] for name in names)
    shifted = numerator * (-shift).exp(), denominator * (-shift).exp(), maximum + shift
    for state in ((numerator, denominator, maximum), shifted):
        other = Problem(problem.leaves | dict(zip(names, state, strict=True)), problem.douts)
        other.assert_close(other.run(partial(call, backend=backend)))


# ---- Masked tokens ----


@BACKENDS
def test_masked_tokens_leave_the_state(backend: str) -> None:
    """Not a bit changes, in a sequence of such tokens as at the end of another one."""
    B = BATCH_SIZES[backend]
    leaves = make_problem((B, 21, 9)).leaves
    inputs = {name: leaves[name] for name in ("k", "v", "decay", "bonus")}
    state = WKVState(*(leaves[name] for name in WKVState._fields))
    for first in (state, initial_wkv_state(B, 9, device=DEVICE)):
        mask = torch.zeros(B, 21, dtype=torch.bool, device=DEVICE)
        out, last = wkv(**inputs, key_mask=mask, state=first, return_state=True, backend=backend)
        assert torch.equal(out, torch.zeros_like(out))
        assert all(map(torch.equal, last, first))
        mask[:, :14] = True
        _, last = wkv(**inputs, key_mask=mask, state=first, return_state=True, backend=backend)
        cut = {name: x[:, :14] if x.ndim == 3 else x for name, x in inputs.items()}
        _, expected = wkv(**cut, state=first, return_state=True, backend=backend)
        assert all(map(torch.equal, last, expected))


@BACKENDS
def test_masked_tokens_might_not_be_there(backend: str) -> None:
    B = BATCH_SIZES[backend]
    leaves = make_problem((B, 21, 9), has_state=False).leaves
    there = torch.rand(21, generator=torch.Generator().manual_seed(0)) < 0.5
    out, state = wkv(**leaves, key_mask=there.to(DEVICE).expand(B, 21), return_state=True, backend=backend)
    kept = {name: x[:, there] if x.ndim == 3 else x for name, x in leaves.items()}
    expected, expected_state = wkv(**kept, return_state=True, backend=backend)
    assert_alike((out[:, there], undivided(state)), (expected, undivided(expected_state)))


@BACKENDS
def test_nothing_of_masked_tokens_enters(backend: str) -> None:
    """Not even NaN, also not into gradients; nor does the gradient of an output that is zero anyway."""
    problem = make_problem((BATCH_SIZES[backend], 12, 9), masked=True)
    run = partial(call, backend=backend)
    expected = problem.run(run)
    assert problem.key_mask is not None
    masked = ~problem.key_mask[..., None]
    poisoned = {
        name: x.masked_fill(masked, torch.nan) if name in ("k", "v") else x for name, x in problem.leaves.items()
    }
    douts = problem.douts | {"out": problem.douts["out"].masked_fill(masked, torch.inf)}
    actual = Problem(poisoned, douts, problem.key_mask).run(run)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    assert all((actual[name].masked_select(masked) == 0).all() for name in ("dk", "dv"))


# ---- Numerics ----


@BACKENDS
@pytest.mark.parametrize("scale", [30.0, 1e4])
def test_extreme_keys(backend: str, scale: float) -> None:
    """Of these k no exponential exists in float32, the differences of most are beyond it too."""
    sizes = BATCH_SIZES[backend], 40, 7
    problem = make_problem(sizes, has_state=False)
    leaves = problem.leaves | {"k": problem.leaves["k"].div(3).clamp(-1, 1) * scale}
    leaves["k"][:, ::3] = leaves["k"][:, :1]  # some are close to one another
    names = list(leaves)

    def run(function: Callable[..., Any], dtype: torch.dtype) -> dict[str, Tensor]:
        inputs = [x.to(dtype).requires_grad_() for x in leaves.values()]
        out = function(*inputs)
        grads = torch.autograd.grad(out, inputs, problem.douts["out"].to(dtype))
        return {"out": out.detach()} | {f"d{name}": dx for name, dx in zip(names, grads, strict=True)}

    def loop(*inputs: Tensor) -> Tensor:
        first = initial_wkv_state(sizes[0], sizes[2], device=DEVICE, dtype=inputs[0].dtype)
        return by_steps(*inputs, first, torch.ones(sizes[:2], dtype=torch.bool, device=DEVICE))[0]

    actual = run(lambda *inputs: wkv(*inputs, backend=backend), torch.float32)
    assert all(x.isfinite().all() for x in actual.values())
    expected = run(loop, torch.float64)
    # The usual bound, whatever the size of the keys; the loop itself, in float32, misses it ten times over.
    assert_close_in(torch.float32, actual, expected, expected, floor=problem.douts["out"].norm().item())


@BACKENDS
def test_extreme_keys_leave_a_finite_state(backend: str) -> None:
    leaves = make_problem((1, 11, 3), has_state=False).leaves
    for key in (-1e4, 1e4):
        k = torch.full_like(leaves["k"], key)
        out, state = wkv(**leaves | {"k": k}, return_state=True, backend=backend)
        assert all(x.isfinite().all() for x in (out, *state))
        assert (state.denominator >= 0.3).all()
        # Another piece, whose keys are at the other end.
        out, state = wkv(**leaves | {"k": -k}, state=state, return_state=True, backend=backend)
        assert all(x.isfinite().all() for x in (out, *state))
        assert (state.denominator >= 0.3).all()


@BACKENDS
def test_slow_decay_after_one_large_key(backend: str) -> None:
    """The first token dominates, then fades over hundreds of tokens, and the sums do not vanish with it."""
    length = 200 if backend == "torch" else 40
    k = torch.full((1, length, 1), -60.0, device=DEVICE)
    k[:, 0] = 60.0
    v = torch.randn(1, length, 1, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    decay, bonus = torch.full((1,), 160 / length, device=DEVICE), torch.zeros(1, device=DEVICE)
    out, state = wkv(k, v, decay, bonus, return_state=True, backend=backend)
    exact = [x.double() for x in (k, v, decay, bonus)]
    zeros = torch.zeros(1, 1, dtype=torch.float64, device=DEVICE)
    expected = by_sums(*exact, zeros, zeros, torch.ones(1, length, dtype=torch.bool, device=DEVICE))
    assert relative_rms(out, expected[0]) < 1e-5
    assert state.denominator.item() > 0.3


def test_long_sequences_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest decay that RWKV starts with, e^-5, remembers 150 tokens; rounding errors do not pile up."""
    monkeypatch.undo()
    problem = make_problem((1, 2000, 4), has_state=False)
    leaves = problem.leaves | {"decay": torch.full((4,), -5.0, device=DEVICE).exp()}
    problem = Problem(leaves, {"out": problem.douts["out"]})
    exact = problem.definition(torch.float64)
    actual = problem.run(partial(call, backend="torch"))
    for name in ("out", "dk", "dv", "dbonus"):
        assert relative_rms(actual[name], exact[name]) < 5e-6, name


def test_the_way_back_may_find_another_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers are found anew there, and a rounding error may tip them over."""
    problem = make_problem((2, 19, 3), torch.float64)
    log_denominator = wkv_chunk.log_denominator

    def call_then_change(**inputs: Any) -> Results:
        monkeypatch.setattr(wkv_chunk, "log_denominator", log_denominator)
        results = call(**inputs)
        monkeypatch.setattr(wkv_chunk, "log_denominator", lambda *sums: log_denominator(*sums) + 1.5)
        return results

    problem.assert_close(problem.run(call_then_change))


def test_saves_few_states() -> None:
    """The inputs themselves, and sums before and after each chunk."""
    leaves = [x.requires_grad_() for x in make_problem((2, 20, 3), has_state=False).leaves.values()]
    saved = saved_by(lambda: wkv(*leaves))
    inputs = {x.data_ptr() for x in leaves}
    assert [tuple(x.shape) for x in saved if x.data_ptr() not in inputs] == [(2, 4, 3, 1, 3)]


@BACKENDS
def test_results_do_not_vary(backend: str) -> None:
    problem = make_problem((BATCH_SIZES[backend], 20, 9), masked=True)
    first, second = (problem.run(partial(call, backend=backend)) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck(masked: bool) -> None:
    problem = make_problem((2, 10, 3), torch.float64, masked=masked, device="cpu")
    leaves = [x.requires_grad_() for x in problem.leaves.values()]

    def run(*inputs: Tensor) -> Results:
        return call(**dict(zip(problem.leaves, inputs, strict=True)), key_mask=problem.key_mask)

    assert torch.autograd.gradcheck(run, leaves)


def test_equal_weights_have_gradients() -> None:
    """Where sums and token weigh the same to the bit there is no choice of a larger one to differentiate."""
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in ((1, 4, 1), (1,), (1, 1))]
    k, decay, maximum = zeros
    v = torch.arange(4, dtype=torch.float64)[None, :, None]
    ones = torch.ones(1, 1, dtype=torch.float64)
    inputs = [x.clone().requires_grad_() for x in (k, v, decay, decay, ones, ones, maximum)]
    names = "k", "v", "decay", "bonus", "numerator", "denominator", "maximum"

    def run(*inputs: Tensor) -> Results:
        return call(**dict(zip(names, inputs, strict=True)))

    def step(*inputs: Tensor) -> Results:
        out, state = wkv_step(*(x[:, 0] for x in inputs[:2]), *inputs[2:4], WKVState(*inputs[4:]))
        return out, *undivided(state)

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradcheck(step, inputs)


@pytest.mark.parametrize("sizes", [(0, 5, 2), (2, 0, 2)], ids=str)
def test_nothing_to_do(sizes: tuple[int, int, int]) -> None:
    problem = make_problem(sizes)
    actual = problem.run(call)
    assert actual["out"].shape == sizes
    expected = problem.leaves["numerator"] * problem.leaves["maximum"].exp()
    assert torch.equal(actual["numerator"], expected)


def test_tokens_far_apart_are_copied() -> None:
    """Offsets within a tile have 32 bits. Where they overflowed, the kernels read memory that was no one's."""
    far = torch.empty_strided((1, 17, 1, 4), (17 << 27, 1 << 27, 4, 1), device="meta")
    assert with_rows(far).stride() == (68, 4, 4, 1)
    near = torch.empty_strided((1, 17, 1, 4), (17 << 26, 1 << 26, 4, 1), device="meta")
    assert with_rows(near) is near


def test_initial_state() -> None:
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        state = initial_wkv_state(3, 5, dtype=dtype)
        assert isinstance(state, WKVState)
        assert all(x.shape == (3, 5) and x.dtype == expected and x.isfinite().all() for x in state)
        k, v = torch.randn(2, 3, 7, 5, dtype=expected)
        parameters = torch.ones(5, dtype=expected), torch.zeros(5, dtype=expected)
        out, last = wkv(k, v, *parameters, state=state, return_state=True)
        expected_out, expected_last = wkv(k, v, *parameters, return_state=True)
        assert all(map(torch.equal, (out, *last), (expected_out, *expected_last)))


# ---- Bad input ----

X, PARAMETER = torch.zeros(2, 9, 3), torch.zeros(3)
STATE = WKVState(*torch.zeros(3, 2, 3))
GOOD: dict[str, Any] = {"k": X, "v": X, "decay": PARAMETER, "bonus": PARAMETER, "state": STATE}


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (TypeError, r"k is a list; it must be a tensor", {"k": [1.0]}),
        (ValueError, r"k has dtype torch.int64; it may be float16", {"k": X.long()}),
        (ValueError, r"k has shape \(2, 9\); it must have 3 axes \(B, T, M\)", {"k": X[..., 0]}),
        (ValueError, r"k has shape \(2, 9, 0\); its last axis must not be empty", {"k": X[..., :0]}),
        (ValueError, r"v has shape \(2, 8, 3\); it must be \(2, 9, 3\) to go with k", {"v": X[:, :8]}),
        (ValueError, r"v is on meta, k on cpu", {"v": X.to("meta")}),
        (ValueError, r"decay has shape \(2,\); it must be \(3,\)", {"decay": PARAMETER[:2]}),
        (ValueError, r"decay has shape \(1, 3\); it must have 1 axes \(M\)", {"decay": PARAMETER[None]}),
        (ValueError, r"bonus has dtype torch.bool", {"bonus": PARAMETER.bool()}),
        (TypeError, r"bonus is a float", {"bonus": 0.5}),
        (ValueError, r"key_mask has dtype torch.float32; it must be bool", {"key_mask": X[..., 0]}),
        (ValueError, r"key_mask has shape \(2, 8\); it must be \(2, 9\)", {"key_mask": X[:, :8, 0].bool()}),
        (TypeError, r"key_mask is a list", {"key_mask": [True]}),
        (TypeError, r"state is a tuple; it must be a WKVState", {"state": tuple(STATE)}),
        (
            ValueError,
            r"state.denominator has shape \(1, 3\); it must be \(2, 3\)",
            {"state": STATE._replace(denominator=STATE.denominator[:1])},
        ),
        (
            ValueError,
            r"state.maximum has dtype torch.float64; these inputs need torch.float32",
            {"state": STATE._replace(maximum=STATE.maximum.double())},
        ),
        (TypeError, r"state.numerator is a NoneType", {"state": STATE._replace(numerator=None)}),
        (TypeError, r"return_state is 1; it must be True or False", {"return_state": 1}),
    ],
)
def test_bad_input(error: type[Exception], message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(error, match=f"^{message}"):
        wkv(**GOOD | changes)


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        (ValueError, r"k has shape \(2, 9, 3\); it must have 2 axes \(B, M\)", {"k": X}),
        (ValueError, r"v has shape \(1, 3\); it must be \(2, 3\)", {"v": X[:1, 0]}),
        (TypeError, r"state is a NoneType; it must be a WKVState", {"state": None}),
        (
            ValueError,
            r"state.numerator has dtype torch.float32; these inputs need torch.float64",
            {"k": X[:, 0].double()},
        ),
    ],
)
def test_bad_step(error: type[Exception], message: str, changes: dict[str, Any]) -> None:
    with pytest.raises(error, match=f"^{message}"):
        wkv_step(**GOOD | {"k": X[:, 0], "v": X[:, 0]} | changes)


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, r"batch_size=-1 must be at least 0", {"batch_size": -1, "width": 2}),
        (ValueError, r"width=0 must be at least 1", {"batch_size": 1, "width": 0}),
        (TypeError, r"width is 2.0; it must be an integer", {"batch_size": 1, "width": 2.0}),
        (ValueError, r"dtype=torch.int32 is unknown", {"batch_size": 1, "width": 2, "dtype": torch.int32}),
    ],
)
def test_bad_initial_state(error: type[Exception], message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=f"^{message}"):
        initial_wkv_state(**arguments)


def test_bad_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"^backend='cuda' is unknown; it may be 'auto', 'torch', 'triton'"):
        wkv(**GOOD, backend="cuda")
    with pytest.raises(ValueError, match=r"^backend='triton' computes in float32, and v has dtype float64; use"):
        wkv(X, X.double(), PARAMETER, PARAMETER, backend="triton")
    monkeypatch.setattr(backends, "IS_INTERPRETED", False)
    with pytest.raises(ValueError, match="backend='triton' needs a CUDA device, and k is on cpu"):
        wkv(**GOOD, backend="triton")


def test_auto_tells_its_choice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="rebased.ops.backends"):
        wkv(**GOOD)
    assert caplog.messages == ["backend='auto' chose 'torch' for (2, 9, 1, 3) on cpu"]


# ---- On a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [(8, 1000, 200), (3, 130, 50), (64, 300, 1000)], ids=str)
def test_large_on_a_gpu(
    sizes: tuple[int, int, int], masked: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By "auto"; parameters are float32. All runs give the same bits."""
    monkeypatch.undo()
    problem = make_problem(sizes, dtype, masked=masked, parameter_dtype=torch.float32, layout="cut out")
    actual = problem.run(call)
    expected = problem.to(torch.float64).run(partial(call, backend="torch"))
    in_torch = problem.run(partial(call, backend="torch"))
    assert_close_in(dtype, actual, expected, in_torch)
    for _ in range(3):
        again = problem.run(call)
        assert all(torch.equal(again[name], actual[name]) for name in actual)
