"""The Triton kernels against the float64 reference: in the interpreter on a CPU, natively where there is a GPU."""

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import Case, cases, make_kernel, random_state
from oracles import by_cumulative_sums, with_gradients
from rebased.kernels import BASED, REBASED, Kernel, Polynomial
from rebased.ops import initial_state, kernel_attention
from rebased.ops.triton import plan
from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.plan import Plan
from tolerances import assert_close_in, relative_rms
from triton_tiles import interpretable  # noqa: F401

POLYNOMIALS = ("rebased", "based", "learned", "learned per head", "linear")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NATIVE = torch.cuda.is_available()


def run(case: Case, backend: str, *, with_state: bool = True) -> dict[str, torch.Tensor]:
    found = with_gradients(lambda: case.call(kernel_attention, return_state=with_state, backend=backend), case.leaves)
    return {name: x.cpu() for name, x in found.items()}


def assert_matches_reference(case: Case, dtype: torch.dtype, *, with_state: bool = True) -> None:
    """Within the dtype's bound, or near what rounding does to two other formulations of the same sums."""
    rounded = case.to("cpu", dtype)
    exact = rounded.to("cpu", torch.float64)
    expected = run(exact, "reference", with_state=with_state)
    directly = run(rounded, "reference", with_state=with_state)
    single = rounded.to("cpu", torch.float32)
    results = slice(None) if with_state else 0
    through_sums = with_gradients(lambda: single.call(by_cumulative_sums)[results], single.leaves)
    baseline = {
        name: max((directly[name], through_sums[name]), key=lambda x: relative_rms(x, want))
        for name, want in expected.items()
    }
    actual = run(case.to(DEVICE, dtype), "triton", with_state=with_state)
    assert_close_in(dtype, actual, expected, baseline, floor=case.grad_floor(expected["out"]))


DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if NATIVE else [])]  # the interpreter garbles bfloat16


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(case=cases(max_len=100, max_feature_dim=18, kernels=POLYNOMIALS), directly=st.booleans())
@settings(max_examples=30)
def test_equals_the_reference(case: Case, dtype: torch.dtype, directly: bool) -> None:
    """Outputs, states and all gradients; packings, masks, positions, grouped heads and states among the cases."""
    plan._make_plan.cache_clear()
    with mock.patch.object(plan, "pays_directly", return_value=directly):  # few queries either way
        assert_matches_reference(case, dtype)


@st.composite
def few_queries(draw: st.DrawFn) -> Case:
    """Queries at some positions, as many heads of keys as of queries, no state: what one walk over the keys may do."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    batch_size, num_heads, feature_dim = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 18))
    length, num_queries = draw(st.integers(1, 70)), draw(st.integers(1, 40))
    leaves: dict[str, torch.Tensor] = {}
    kernel = make_kernel(draw(st.sampled_from(POLYNOMIALS)), num_heads, feature_dim, leaves, generator)
    arguments: dict[str, Any] = {
        "normalize": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.7])),
        "at": torch.randint(0, length, (batch_size, num_queries), generator=generator),
    }
    if draw(st.booleans()):
        arguments["key_mask"] = torch.rand(batch_size, length, generator=generator) < draw(st.sampled_from([0.0, 0.7]))
    shapes = {"q": (num_queries, feature_dim), "k": (length, feature_dim)}
    for name, (rows, width) in (shapes | {"v": (length, draw(st.sampled_from([1, 2, 5, 17])))}).items():
        leaves[name] = torch.randn(batch_size, rows, num_heads, width, dtype=torch.float64, generator=generator)
    return Case(kernel, leaves, arguments)


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@given(case=few_queries())
@settings(max_examples=30)
def test_few_queries_walk_once(case: Case, dtype: torch.dtype) -> None:
    plan._make_plan.cache_clear()
    with (
        mock.patch.object(plan, "pays_directly", return_value=True),
        mock.patch.object(Plan, "few_queries_grads", autospec=True, side_effect=Plan.few_queries_grads) as walk,
    ):
        assert_matches_reference(case, dtype, with_state=False)
    walk.assert_called_once()


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize("magnitude", [1e-5, 1e6])
@pytest.mark.parametrize("once", [True, False], ids=["in one walk", "by queries and by keys"])
def test_normalisers_whose_squares_are_out_of_range(magnitude: float, once: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (7, 5), "k": (40, 5), "v": (40, 3)}
    leaves = {
        name: torch.randn(2, rows, 2, width, dtype=torch.float64, generator=generator)
        * (1 if name == "v" else magnitude)
        for name, (rows, width) in shapes.items()
    }
    case = Case(REBASED, leaves, {"at": torch.randint(0, 40, (2, 7), generator=generator), "eps": 0.0})
    with mock.patch.object(plan, "pays_directly", return_value=True), mock.patch.object(Plan, "walks_once", once):
        assert_matches_reference(case, torch.float32, with_state=False)


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize(
    ("queries", "magnitude", "learned"),
    [
        *((queries, 1.0, learned) for queries in ("in one walk", "in two", "all") for learned in (False, True)),
        # Squares of scores are out of range, and only states and gradients of coefficients need these.
        *((queries, 1e12, False) for queries in ("in one walk", "in two")),
    ],
)
@pytest.mark.parametrize(
    "coefficients",
    [
        pytest.param((1.0, 1.0, 0.5), id="based"),
        pytest.param((1.0, 1.0, 1.0), id="ones"),
        pytest.param((1.0, -2.0, 1.0), id="touching zero"),
        pytest.param((2.0, 0.0, 3.0), id="even"),
        pytest.param((1.0, 0.0, 0.0), id="nothing to square"),
    ],
)
def test_squares_that_are_never_negative(
    coefficients: tuple[float, float, float], queries: str, magnitude: float, learned: bool
) -> None:
    """What is never negative is computed as a square and a rest."""
    generator = torch.Generator().manual_seed(0)
    leaves = {
        name: torch.randn(2, 40, 2, width, dtype=torch.float64, generator=generator) * size
        for name, width, size in (("q", 5, magnitude), ("k", 5, magnitude), ("v", 3, 1.0))
    }
    terms: list[Any] = list(coefficients)
    if learned:
        terms = [torch.tensor(each, dtype=torch.float64) for each in coefficients]
        leaves |= {f"c{degree}": each for degree, each in enumerate(terms)}
    arguments: dict[str, Any] = {"scale": 0.5 / magnitude**2}
    if queries != "all":
        leaves["q"] = leaves["q"][:, :7].contiguous()
        arguments["at"] = torch.randint(0, 40, (2, 7), generator=generator)
    case = Case(Polynomial(*terms, nonnegative=True if learned else None), leaves, arguments)
    once = queries == "in one walk"
    with mock.patch.object(plan, "pays_directly", return_value=True), mock.patch.object(Plan, "walks_once", once):
        assert_matches_reference(case, torch.float32, with_state=False)


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize("coefficients", [(1.0, 3.0, 1.0), (1.0, 1.0, 1e-3), (2.0, 1.0, -0.1)])
@pytest.mark.parametrize("directly", [False, True])
def test_vouched_for_where_scores_are_positive(coefficients: tuple[float, float, float], directly: bool) -> None:
    """Elsewhere these are negative, and no sum of squares."""
    generator = torch.Generator().manual_seed(0)
    leaves = {
        name: torch.rand(2, 40, 2, width, dtype=torch.float64, generator=generator)
        for name, width in (("q", 5), ("k", 5), ("v", 3))
    }
    case = Case(Polynomial(*coefficients, nonnegative=True), leaves)
    with mock.patch.object(plan, "pays_directly", return_value=directly):
        assert_matches_reference(case, torch.float32)


# Each of these compiles its own kernels, for seconds: few shapes, and a name to run some of them in each of several
# processes (`pytest -m gpu -k part3`).
NATIVE_CASES = [
    (kernel, dtype, size, arguments)
    for kernel, size, arguments in (
        ("rebased", (16, 64), {}),
        ("rebased", (16, 12), {"at": True}),
        ("rebased", (16, 64), {"causal": False}),
        ("rebased", (16, 12), {"cu_seqlens": True, "state": True}),
        ("based", (5, 20), {"key_mask": True, "state": True}),
        # Coefficients of any sign make a normaliser that may vanish, with errors to match: not in a long sequence.
        ("learned per head", (16, 64), {"cu_seqlens": True, "at": True, "normalize": False}),
        ("learned", (32, 64), {"normalize": False, "key_mask": True}),
        ("linear", (16, 12), {"normalize": False, "causal": False, "state": True}),
    )
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
]


def make_case(
    kernel_name: str, size: tuple[int, int], batch_size: int, borders: list[int], settings: dict[str, bool]
) -> Case:
    """Sequences that end at the last border; packed ones have them all."""
    generator = torch.Generator().manual_seed(0)
    feature_dim, head_dim = size
    B, T, key_heads, group = batch_size, borders[-1], 2, 2
    leaves: dict[str, torch.Tensor] = {}
    kernel = make_kernel(kernel_name, key_heads * group, feature_dim, leaves, generator)
    arguments: dict[str, Any] = {name: settings[name] for name in ("causal", "normalize") if name in settings}
    num_sequences, num_queries = B, T
    if "cu_seqlens" in settings:
        B, num_sequences = 1, len(borders) - 1
        arguments["cu_seqlens"] = torch.tensor(borders)
    if "at" in settings:
        num_queries = 100
        arguments["at"] = torch.randint(0, T, (B, num_queries), generator=generator)
    if "key_mask" in settings:
        arguments["key_mask"] = torch.rand(B, T, generator=generator) < 0.7
    if "state" in settings:
        arguments["state"] = random_state(kernel, num_sequences, key_heads, feature_dim, head_dim, generator)
        leaves["state.values"], leaves["state.normalizer"] = arguments["state"].values, arguments["state"].normalizer
    shapes = {"q": (num_queries, key_heads * group, feature_dim), "k": (T, key_heads, feature_dim)}
    for name, shape in (shapes | {"v": (T, key_heads, head_dim)}).items():
        leaves[name] = torch.randn(B, *shape, dtype=torch.float64, generator=generator)
    return Case(kernel, leaves, arguments)


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize(
    ("kernel_name", "settings"),
    [
        ("rebased", {}),
        ("rebased", {"cu_seqlens": True}),
        ("rebased", {"at": True, "state": True}),
        ("based", {"cu_seqlens": True, "at": True, "state": True, "key_mask": True}),
        ("learned per head", {"cu_seqlens": True, "state": True, "normalize": False}),
        ("linear", {"key_mask": True, "normalize": False}),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(x),
)
def test_segments_of_several_chunks(
    kernel_name: str, settings: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row, so that it is cut; packed sequences of one segment and of several, the last ones not full."""
    shifted: list[tuple[int, int]] = []
    shift = Plan.shift

    def record(plan: Plan) -> Launcher:
        shifted.append((plan.segments_per_row, plan.segment(290) // plan.tuning.chunk))
        return shift(plan)

    monkeypatch.setattr(Plan, "shift", record)
    case = make_case(kernel_name, (5, 3), 1, [0, 3, 3, 150, 183, 290], settings)
    assert_matches_reference(case, torch.float32)
    assert shifted
    assert all(segments > 2 and chunks > 1 for segments, chunks in shifted)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel_name", "dtype", "size", "settings"),
    NATIVE_CASES,
    ids=[f"part{i % 8}-{name}-{dtype}" for i, (name, dtype, _, _) in enumerate(NATIVE_CASES)],
)
def test_equals_the_reference_with_tiles_of_real_size(
    kernel_name: str, dtype: torch.dtype, size: tuple[int, int], settings: dict[str, bool]
) -> None:
    assert_matches_reference(make_case(kernel_name, size, 2, [0, 3, 3, 700, 1111], settings), dtype)


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize(
    ("feature_dim", "head_dim"), [(1, 1), (16, 64), (17, 20), (32, 5), (3, 130), (2, 300)], ids=lambda n: str(n)
)
def test_all_widths(feature_dim: int, head_dim: int) -> None:
    """F up to 32, any D: padded inside, or a part at a time."""
    generator = torch.Generator().manual_seed(0)

    def leaf(heads: int, width: int) -> torch.Tensor:
        return torch.randn(1, 70, heads, width, dtype=torch.float64, generator=generator).requires_grad_()

    state = initial_state(BASED, 1, 1, feature_dim, head_dim, dtype=torch.float64)
    state = replace(
        state,
        values=torch.rand(state.values.shape, generator=generator, dtype=torch.float64),
        normalizer=torch.rand(state.normalizer.shape, generator=generator, dtype=torch.float64),
    )
    leaves = {"q": leaf(2, feature_dim), "k": leaf(1, feature_dim), "v": leaf(1, head_dim)}
    leaves["state.values"], leaves["state.normalizer"] = state.values, state.normalizer
    assert_matches_reference(Case(BASED, leaves, {"state": state}), torch.float32)


@pytest.mark.usefixtures("interpretable")
def test_inputs_need_not_be_contiguous() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 50, n, generator=generator).to(DEVICE) for n in (6, 6, 5))
    inputs = [q.transpose(1, 2), k.transpose(1, 2), v.mT.contiguous().mT.transpose(1, 2)]
    assert not any(x.is_contiguous() for x in inputs)
    leaves = [x.requires_grad_() for x in inputs]
    grad = torch.randn(1, 1, 1, 1, generator=generator).to(DEVICE).expand(2, 50, 3, 5)  # as from a sum: no stride
    results = []
    for tensors in (leaves, [x.detach().clone().contiguous().requires_grad_() for x in inputs]):
        out = kernel_attention(*tensors, backend="triton")
        results.append([out, *torch.autograd.grad(out, tensors, grad)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize("kernel", [REBASED, Polynomial(1, -2, 1)], ids=["rebased", "touching zero"])
@pytest.mark.parametrize("magnitude", [0.0, 1e-20, 1.0, 1e3])
def test_finite_and_inside_the_range_of_v(kernel: Kernel, magnitude: float) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = ((torch.rand(1, 90, 1, 4, generator=generator) * 2 - 1) * magnitude for _ in range(2))
    k = k * (torch.rand(k.shape, generator=generator) < 0.3)
    v = torch.randn(1, 90, 1, 3, generator=generator)
    q, k, v = (x.to(DEVICE).requires_grad_() for x in (q, k, v))
    out = kernel_attention(q, k, v, kernel, backend="triton")
    for x in (out, *torch.autograd.grad(out.sum(), (q, k, v))):
        assert x.isfinite().all()
    assert (out <= v.amax(dim=1, keepdim=True).clamp(min=0) + 1e-4).all()
    assert (out >= v.amin(dim=1, keepdim=True).clamp(max=0) - 1e-4).all()


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize("causal", [True, False])
def test_queries_orthogonal_to_every_key_get_zero(causal: bool) -> None:
    """Also through a state, where zero arrives as rounding error; positive values show any leak."""
    generator = torch.Generator().manual_seed(0)
    q = torch.zeros(1, 90, 1, 6)
    q[..., :3] = torch.randn(1, 90, 1, 3, generator=generator)
    k = torch.zeros(1, 90, 1, 6)
    k[..., 3:] = torch.randn(1, 90, 1, 3, generator=generator)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    q, k = ((x.double() @ turn).float().to(DEVICE).requires_grad_() for x in (q, k))
    v = (torch.rand(1, 90, 1, 3, generator=generator) + 1).to(DEVICE).requires_grad_()
    state = initial_state(REBASED, 1, 1, 6, 3, device=DEVICE)
    if not causal:
        out = kernel_attention(q, k, v, causal=False, backend="triton")
    else:
        _, state = kernel_attention(q, k, v, return_state=True, backend="triton")
        nothing = torch.zeros_like(k).requires_grad_()
        out = kernel_attention(q, nothing, v, state=state, backend="triton")
    assert (out == 0).all()
    for grad in torch.autograd.grad(out.sum(), (q, v)):
        assert (grad == 0).all()


@pytest.mark.usefixtures("interpretable")
def test_what_masked_keys_hold_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 70, 2, n, generator=generator).to(DEVICE) for n in (5, 5, 4))
    key_mask = (torch.rand(2, 70, generator=generator) < 0.5).to(DEVICE)
    results = []
    for filler in (0.0, float("nan")):
        leaves = [q.clone(), k.masked_fill(~key_mask[..., None, None], filler)]
        leaves.append(v.masked_fill(~key_mask[..., None, None], filler))
        leaves = [x.requires_grad_() for x in leaves]
        out, state = kernel_attention(*leaves, BASED, key_mask=key_mask, return_state=True, backend="triton")
        grads = torch.autograd.grad(out.sum() + state.values.sum(), leaves)
        results.append([out, state.values, state.normalizer, *grads])
    for zeros, nans in zip(*results, strict=True):
        assert torch.equal(zeros, nans)


@pytest.mark.usefixtures("interpretable")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, in the interpreter
@pytest.mark.parametrize("outlier", [1e3, float("inf")])
def test_the_future_does_not_reach_the_past(outlier: float) -> None:
    """Neither by rounding of sums that it has a part in, nor as NaN; segments and chunks begin before it."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 128, 1, n, generator=generator).to(DEVICE) for n in (4, 4, 3))
    small = k * 1e-2
    large = small.clone()
    large[:, -1] = outlier
    expected = kernel_attention(q, small, v, backend="triton")
    out = kernel_attention(q, large, v, backend="triton")
    assert torch.equal(out[:, :-16], expected[:, :-16])
    if outlier < float("inf"):  # within a chunk 0 · inf is NaN
        torch.testing.assert_close(out[:, :-1], expected[:, :-1], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("interpretable")
def test_wide_values_are_rounded_once() -> None:
    """The parts of a gradient nearly cancel here."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(1, 40, 1, 130, generator=generator, dtype=torch.float64)
    grad = torch.randn(1, 40, 1, 130, generator=generator, dtype=torch.float64)
    leaves = {name: torch.randn(1, 40, 1, 4, generator=generator, dtype=torch.float64) for name in "qk"}
    leaves["v"] = torch.cat([half, -half], dim=-1)
    results = []
    for dtype, backend in ((torch.float64, "reference"), (torch.float16, "triton")):
        cast_leaves = [x.half().to(DEVICE, dtype).requires_grad_() for x in leaves.values()]
        out = kernel_attention(*cast_leaves, backend=backend)
        weights = torch.cat([grad, grad], dim=-1).half().to(DEVICE, dtype)
        results.append(torch.autograd.grad(out, cast_leaves, weights))
    for expected, actual in zip(*results, strict=True):
        assert actual.isfinite().all()
        assert (actual.double() - expected.double()).norm() <= 2e-3 * max(expected.double().norm().item(), 1.0)


@pytest.mark.usefixtures("interpretable")
def test_a_sequence_whole_and_in_pieces() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 80, 2, n, generator=generator).to(DEVICE) for n in (5, 5, 4))
    whole, end = kernel_attention(q, k, v, BASED, return_state=True, backend="triton")
    state, outs, start = None, [], 0
    for length in (1, 33, 46):
        piece = slice(start, start + length)
        out, state = kernel_attention(
            q[:, piece], k[:, piece], v[:, piece], BASED, state=state, return_state=True, backend="triton"
        )
        outs.append(out)
        start += length
    assert state is not None
    torch.testing.assert_close(torch.cat(outs, dim=1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state.values, end.values, rtol=1e-5, atol=1e-4)
    assert torch.equal(state.count, end.count)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kernel", [REBASED, BASED], ids=["rebased", "based"])
def test_identical_from_run_to_run(kernel: Kernel, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    leaves = {
        name: torch.randn(1, 65536, 4, n, generator=generator, device="cuda", dtype=dtype).requires_grad_()
        for name, n in {"q": 16, "k": 16, "v": 64}.items()
    }
    first, second = (run(Case(kernel, leaves), "triton") for _ in range(2))
    for name, x in first.items():
        assert torch.equal(x, second[name]), name


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [REBASED, BASED], ids=["rebased", "based"])
@pytest.mark.parametrize(("length", "heads", "head_dim"), [(2048, 4, 64), (65536, 2, 64), (65536, 4, 12)])
def test_error_in_bfloat16_at_length(kernel: Kernel, length: int, heads: int, head_dim: int) -> None:
    """Against float64 on the chunked backend, itself within 1e-10 of the reference."""
    generator = torch.Generator("cuda").manual_seed(0)
    inputs = {
        name: torch.randn(1, length, heads, n, generator=generator, device="cuda").bfloat16()
        for name, n in {"q": 16, "k": 16, "v": head_dim}.items()
    }

    def results(dtype: torch.dtype, backend: str) -> dict[str, torch.Tensor]:
        return run(Case(kernel, {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}), backend)

    expected = results(torch.float64, "chunked")
    assert_close_in(torch.bfloat16, results(torch.bfloat16, "triton"), expected, expected)
