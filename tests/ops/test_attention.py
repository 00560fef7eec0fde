"""Kernel attention against the definition in float64: outputs, states and every gradient, over generated problems."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import Case, cases
from oracles import by_cumulative_sums, by_hand, with_gradients
from rebased.kernels import BASED, DPFP, ELEMENTWISE_SQUARE, REBASED, RFA, Kernel
from rebased.ops import attention_matrix, blocks, chunked, initial_state, kernel_attention, kernel_attention_step
from rebased.ops.problem import Part, Problem
from rebased.replay import as_recorded
from tolerances import assert_close_in_float64


def run(case: Case, backend: str) -> dict[str, torch.Tensor]:
    return with_gradients(lambda: case.call(kernel_attention, return_state=True, backend=backend), case.leaves)


@contextmanager
def small_blocks(chunk_size: int, chunks_per_block: int) -> Iterator[None]:
    """Chunks of a few tokens, blocks of a few chunks, parts of two heads: short sequences cross every border."""
    rows = chunk_size * chunks_per_block
    sizes = {
        "preferred_chunk_size": lambda problem: chunk_size,
        "rows_per_block": lambda problem: rows,
        "is_direct": lambda problem: False,
    }
    with mock.patch.multiple(blocks, **sizes), mock.patch.object(chunked, "parts", parts_of_two):
        yield


def parts_of_two(problem: Problem) -> list[Part]:
    """At most two sequences and two key heads each."""
    (B, _, Hk, _), G = problem.k.shape, problem.group
    corners = itertools.product(range(0, B, 2), range(0, Hk, 2))
    return [Part(slice(b, b + 2), slice(h, h + 2), slice(h * G, (h + 2) * G)) for b, h in corners]


@given(case=cases(), chunk_size=st.integers(1, 9), chunks_per_block=st.integers(1, 3), recorded=st.booleans())
@settings(max_examples=400)
def test_chunked_equals_reference(case: Case, chunk_size: int, chunks_per_block: int, recorded: bool) -> None:
    """``recorded``: queries at given positions are laid out as in a CUDA graph, without asking how many a block has."""
    with (
        small_blocks(chunk_size, chunks_per_block),
        as_recorded() if recorded else nullcontext(),
    ):
        actual = run(case, "chunked")
    assert_equals_reference(case, actual)


@pytest.mark.parametrize("degree", [1, 2], ids=["a feature map", "a square"])
def test_chunked_asks_a_device_for_nothing(degree: int) -> None:
    """A CUDA graph could not answer. Here there are no data: whoever asks for some fails."""
    q, k, v = (torch.empty(2, n, 2, width, device="meta") for n, width in ((9, 6), (300, 6), (300, 3)))
    problem = Problem(
        q=q,
        k=k,
        v=v,
        coefficients=None,
        key_mask=None,
        state=None,
        at=torch.empty(2, 9, dtype=torch.int64, device="meta"),
        degrees=(degree,),
        scale=1.0,
        eps=1e-12,
        normalize=True,
        causal=True,
        nonnegative=True,
    )
    with as_recorded(), mock.patch.object(blocks, "is_direct", return_value=False):
        out, normalizer, _ = chunked.forward(problem, return_sums=False)
        grads = chunked.backward(problem, out, normalizer, torch.empty_like(out), None, coefficients=False)
    assert (grads.q.shape, grads.k.shape, grads.v.shape) == (q.shape, k.shape, v.shape)


@given(case=cases())
@settings(max_examples=150)
def test_chunked_equals_reference_at_its_own_sizes(case: Case) -> None:
    """Few queries (``at``) meet the keys directly."""
    assert_equals_reference(case, run(case, "chunked"))


def assert_equals_reference(case: Case, actual: dict[str, torch.Tensor]) -> None:
    expected = run(case, "reference")
    other = with_gradients(lambda: case.call(by_cumulative_sums), case.leaves)
    assert_close_in_float64(actual, expected, other, floor=case.grad_floor(expected["out"]))


@pytest.mark.parametrize("kernel", [REBASED, BASED], ids=["rebased", "based"])
@pytest.mark.parametrize(("feature_dim", "head_dim"), [(1, 1), (16, 21), (64, 5)])
def test_chunked_equals_reference_at_its_own_chunk_sizes(kernel, feature_dim, head_dim) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (2, 700, 4, feature_dim), "k": (2, 700, 2, feature_dim), "v": (2, 700, 2, head_dim)}
    leaves = {
        name: torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()
        for name, shape in shapes.items()
    }
    case = Case(kernel, leaves, {})
    actual, expected = run(case, "chunked"), run(case, "reference")
    assert_close_in_float64(actual, expected, expected, floor=case.grad_floor(expected["out"]))


@given(case=cases(), cuts=st.lists(st.integers(0, 40), max_size=3), chunk_size=st.integers(1, 9))
@settings(max_examples=200)
def test_whole_equals_pieces_equals_token_by_token(case: Case, cuts: list[int], chunk_size: int) -> None:
    arguments = {key: x for key, x in case.arguments.items() if key not in ("at", "cu_seqlens", "causal")}
    q = queries_for_every_key(case)
    leaves = {**case.leaves, "q": q.requires_grad_()}
    if "state" in arguments and arguments["state"].count.shape[0] != q.shape[0]:  # it was made for packed sequences
        arguments = {key: x for key, x in arguments.items() if key != "state"}
        leaves = {name: x for name, x in leaves.items() if not name.startswith("state")}
    case = Case(case.kernel, leaves, arguments)
    T = q.shape[1]
    borders = [0, *sorted(min(cut, T) for cut in cuts), T]

    def in_pieces(q, k, v, kernel, *, state=None, key_mask=None, **arguments):
        outs = []
        for start, end in itertools.pairwise(borders):
            mask = None if key_mask is None else key_mask[:, start:end]
            piece = (x[:, start:end] for x in (q, k, v))
            out, state = kernel_attention(
                *piece, kernel, state=state, key_mask=mask, return_state=True, backend="chunked", **arguments
            )
            outs.append(out)
        return torch.cat(outs, dim=1), state

    def by_tokens(q, k, v, kernel, *, state=None, key_mask=None, **arguments):
        if state is None:
            state = initial_state(kernel, k.shape[0], *k.shape[2:], v.shape[-1], dtype=torch.float64)
        outs = [q.new_zeros(*q.shape[:1], 0, q.shape[2], v.shape[-1])]
        for t in range(T):
            mask = None if key_mask is None else key_mask[:, t]
            out, state = kernel_attention_step(q[:, t], k[:, t], v[:, t], state, kernel, key_mask=mask, **arguments)
            outs.append(out[:, None])
        return torch.cat(outs, dim=1), state

    expected = run(case, "reference")
    other = with_gradients(lambda: case.call(by_cumulative_sums), case.leaves)
    floor = case.grad_floor(expected["out"])
    with small_blocks(chunk_size, 2):
        pieces = with_gradients(lambda: case.call(in_pieces), case.leaves)
    assert_close_in_float64(pieces, expected, other, floor=floor)
    tokens = with_gradients(lambda: case.call(by_tokens), case.leaves)
    assert_close_in_float64(tokens, expected, other, floor=floor)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_equals_the_formula_by_hand(backend: str) -> None:
    """Pins the reference itself: plain loops, with grouped heads, a mask and two packed sequences."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(1, 7, 4, 3)), rng.normal(size=(1, 7, 2, 3)), rng.normal(size=(1, 7, 2, 2))
    mask = np.array([[True, True, False, True, True, False, True]])
    expected = by_hand(
        q,
        k.repeat(2, axis=2),
        v.repeat(2, axis=2),
        lambda a, b: 1 + a @ b / 3**0.5 + (a @ b) ** 2 / 6,
        visible=lambda b, i, j: j <= i and mask[b, j] and (j < 3) == (i < 3),
    )
    actual = kernel_attention(
        *map(torch.from_numpy, (q, k, v)),
        BASED,
        key_mask=torch.from_numpy(mask),
        cu_seqlens=torch.tensor([0, 3, 7]),
        backend=backend,
    )
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12)


@given(case=cases(max_len=20))
@settings(max_examples=100)
def test_attention_matrix_holds_the_weights(case: Case) -> None:
    """Matrix times values is the output, for everything but a state."""
    arguments = {key: x for key, x in case.arguments.items() if key != "state"}
    q, k, v = (case.leaves[name] for name in "qkv")
    weights = attention_matrix(q, k, case.kernel, **arguments)
    values = v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    expected = kernel_attention(q, k, v, case.kernel, backend="chunked", **arguments)
    torch.testing.assert_close(torch.einsum("bhts,bshd->bthd", weights, values), expected, rtol=1e-9, atol=1e-9)


@given(case=cases(max_len=20), chunk_size=st.integers(1, 9))
@settings(max_examples=100)
def test_a_prefix_ignores_what_follows(case: Case, chunk_size: int) -> None:
    """Bit for bit: nothing of a later token may enter an earlier sum, not even times zero."""
    arguments = {key: x for key, x in case.arguments.items() if key in ("scale", "normalize")}
    k, v = case.leaves["k"].detach(), case.leaves["v"].detach()
    q = queries_for_every_key(case)
    cut = k.shape[1] // 2
    changed = [torch.cat([x[:, :cut], 7 - 100 * x[:, cut:]], dim=1) for x in (q, k, v)]
    with small_blocks(chunk_size, 2):
        before = kernel_attention(q, k, v, case.kernel, backend="chunked", **arguments)[:, :cut]
        after = kernel_attention(*changed, case.kernel, backend="chunked", **arguments)[:, :cut]
    assert torch.equal(before, after)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize(
    "kernel", [REBASED, BASED, ELEMENTWISE_SQUARE, DPFP(2), RFA(3)], ids=lambda kernel: kernel.name
)
def test_masked_keys_may_hold_anything(kernel: Kernel, backend: str, causal: bool) -> None:
    """NaN behind the mask reaches neither outputs nor gradients nor the state."""
    clean = random_inputs()
    mask = torch.tensor([[False, True, True, False, True, True, True, True, False]])
    dirty = [clean[0], *(x.masked_fill(~mask[..., None, None], torch.nan) for x in clean[1:])]
    assert_equal_results(clean, dirty, places=mask[0], kernel=kernel, key_mask=mask, causal=causal, backend=backend)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("dirty_one", ["first", "second"])
def test_packed_sequences_may_hold_anything(dirty_one: str, causal: bool) -> None:
    """NaN in one packed sequence reaches no other, though both are padded into one batch."""
    clean = random_inputs()
    spared = (torch.arange(9) < 5) == (dirty_one == "second")
    dirty = [x.masked_fill(~spared[:, None, None], torch.nan) for x in clean]
    borders = torch.tensor([0, 5, 9])
    assert_equal_results(clean, dirty, places=spared, cu_seqlens=borders, causal=causal, backend="chunked")


def queries_for_every_key(case: Case) -> torch.Tensor:
    shape = (*case.leaves["k"].shape[:2], *case.leaves["q"].shape[2:])
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def random_inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 9, 2, n, dtype=torch.float64, generator=generator) for n in (3, 3, 4)]


def assert_equal_results(clean, dirty, *, places: torch.Tensor, **arguments) -> None:
    results = []
    for inputs in (clean, dirty):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = kernel_attention(*leaves, **arguments)[:, places]
        results.append([out, *(grad[:, places] for grad in torch.autograd.grad(out.sum(), leaves))])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-15)
