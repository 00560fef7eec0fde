"""linear_cross_entropy against torch's of float64 logits: in plain torch, and in Triton's interpreter or on a GPU."""

import logging
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

from rebased.ops import backends, cross_entropy, linear_cross_entropy
from rebased.ops.triton import cross_entropy as triton_cross_entropy
from rebased.ops.triton import cross_entropy_rows
from tolerances import RELATIVE_RMS, relative_rms
from transform_cases import assert_alike, assert_refuses_double_backward, looped, saved_by, with_grads

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter's bfloat16 is not to be relied on.
TRITON_DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])]
DTYPES = {
    "torch": [torch.float64, torch.float32, torch.float16, torch.bfloat16],
    "triton": TRITON_DTYPES,
    "triton, rows of logits": TRITON_DTYPES,
}
BACKENDS = pytest.mark.parametrize("backend", DTYPES, indirect=True)
BACKENDS_AND_DTYPES = pytest.mark.parametrize(
    ("backend", "dtype"),
    [(backend, dtype) for backend, dtypes in DTYPES.items() for dtype in dtypes],
    ids=str,
    indirect=["backend"],
)

compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")
compiles = pytest.mark.usefixtures("_forget_compilations")


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several tiles, parts and pieces also for a few rows and words."""
    tile = triton_cross_entropy.Tile(rows=16, words=32, num_warps=4, num_stages=1)
    monkeypatch.setattr(triton_cross_entropy, "tile_of", lambda *_: tile)
    monkeypatch.setattr(triton_cross_entropy, "ENOUGH_PROGRAMS", 5)
    monkeypatch.setattr(cross_entropy, "PIECE_NUMBERS", 300)
    monkeypatch.setattr(cross_entropy_rows, "PIECE_LOGITS", 300)
    monkeypatch.setattr(cross_entropy_rows, "MAX_BLOCK", 16)
    cross_entropy_rows._launcher.cache_clear()
    yield
    cross_entropy_rows._launcher.cache_clear()


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As users name it; the form for wide rows is made to take any."""
    if request.param == "triton, rows of logits":
        take_rows_of_logits(monkeypatch)
    return request.param.split(",")[0]


def take_rows_of_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_WIDTH", "MAX_FLOAT32_WIDTH"):
        monkeypatch.setattr(triton_cross_entropy, name, 0)


# ---- The oracle ----


def oracle(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(x @ weight.mT, labels, reduction="none")


@dataclass(frozen=True)
class Problem:
    x: Tensor
    weight: Tensor
    labels: Tensor
    dlosses: Tensor

    def run(self, function: Callable[..., Tensor], **settings: Any) -> dict[str, Tensor]:
        """Losses and both gradients, whose dtypes and shapes are the inputs'."""
        x, weight = (y.detach().requires_grad_() for y in (self.x, self.weight))
        losses = function(x, weight, self.labels, **settings)
        assert (losses.shape, losses.dtype) == (self.labels.shape, self.dlosses.dtype)
        dx, dweight = torch.autograd.grad(losses, (x, weight), self.dlosses)
        for have, like in ((dx, x), (dweight, weight)):
            assert (have.dtype, have.shape, have.device) == (like.dtype, like.shape, like.device)
        return {"losses": losses.detach(), "dx": dx, "dweight": dweight}

    def exact(self) -> "Problem":
        return Problem(self.x.double(), self.weight.double(), self.labels, self.dlosses.double())

    def allowed(self) -> dict[str, float]:
        """Rounding of sums, by the terms that they have; of logits, by theirs; of factors and results in the dtype."""
        p = self.exact()
        factors = RELATIVE_RMS[self.x.dtype]
        sums = RELATIVE_RMS[self.dlosses.dtype]
        logit_terms = 1 + p.x.abs() @ p.weight.abs().mT  # (N, V)
        chosen = torch.nn.functional.one_hot(p.labels, len(p.weight)).double()
        probabilities = (p.x @ p.weight.mT).softmax(dim=-1)
        exact = (probabilities - chosen).abs() * p.dlosses.abs()[:, None]
        imprecise = (probabilities + chosen) * logit_terms * p.dlosses.abs()[:, None]
        dlogits = factors * exact + sums * imprecise
        return {
            "losses": sums * logit_terms.amax(dim=-1).norm().item() if len(p.x) else 0.0,
            "dx": (dlogits @ p.weight.abs()).norm().item(),
            "dweight": (dlogits.mT @ p.x.abs()).norm().item(),
        }

    def assert_close(self, actual: dict[str, Tensor]) -> None:
        expected, allowed = self.exact().run(oracle), self.allowed()
        for name, want in expected.items():
            error = (actual[name].double() - want).norm().item()
            assert error <= allowed[name], f"{name}: off by {error:.2e}, allowed {allowed[name]:.2e}"


def make_problem(
    num_rows: int,
    num_words: int,
    width: int,
    dtype: torch.dtype,
    *,
    scale: float = 1.0,
    seed: int = 0,
    device: str = DEVICE,
    label: int | None = None,
) -> Problem:
    """Logits are of size ``scale``; all labels are the given one, or any."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_rows, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(num_words, width, generator=generator, dtype=torch.float64) * (scale / width**0.5)
    labels = torch.randint(num_words, (num_rows,), generator=generator)
    if label is not None:
        labels.fill_(label)
    dlosses = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    losses_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    return Problem(x.to(device, dtype), weight.to(device, dtype), labels.to(device), dlosses.to(device, losses_dtype))


@st.composite
def problems(draw: st.DrawFn, dtypes: list[torch.dtype]) -> Problem:
    num_words = draw(st.integers(1, 70) | st.sampled_from([32, 64]))
    return make_problem(
        draw(st.integers(0, 40) | st.sampled_from([1, 16, 32])),
        num_words,
        draw(st.integers(1, 40) | st.sampled_from([16, 32, 48])),
        draw(st.sampled_from(dtypes)),
        scale=draw(st.sampled_from([0.1, 1.0, 30.0])),
        seed=draw(st.integers(0, 2**32)),
        label=draw(st.sampled_from([None, None, 0, num_words - 1])),
    )


# ---- Values and gradients ----


@given(data=st.data())
@settings(max_examples=150)
def test_torch_equals_cross_entropy(data: st.DataObject) -> None:
    problem = data.draw(problems(DTYPES["torch"]))
    problem.assert_close(problem.run(linear_cross_entropy, backend="torch"))


@given(data=st.data())
@settings(max_examples=40)
def test_triton_equals_cross_entropy(data: st.DataObject) -> None:
    problem = data.draw(problems(TRITON_DTYPES))
    problem.assert_close(problem.run(linear_cross_entropy, backend="triton"))


@given(data=st.data())
@settings(max_examples=40)
def test_rows_of_logits_equal_cross_entropy(data: st.DataObject) -> None:
    problem = data.draw(problems(TRITON_DTYPES))
    with pytest.MonkeyPatch.context() as patches:
        take_rows_of_logits(patches)
        problem.assert_close(problem.run(linear_cross_entropy, backend="triton"))


def test_float64_to_nine_digits() -> None:
    problem = make_problem(50, 300, 24, torch.float64)
    expected = problem.run(oracle)
    for name, actual in problem.run(linear_cross_entropy).items():
        assert relative_rms(actual, expected[name]) < 1e-12, name


@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (20, torch.float32),
        (100, torch.float32),
        (48, torch.float16),
        (130, torch.float16),
        (300, torch.float16),
        (600, torch.float16),
        (200, torch.float32),
    ],
    ids=str,
)
def test_tiles_of_their_real_size(width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    problem = make_problem(150, 200, width, dtype)
    problem.assert_close(problem.run(linear_cross_entropy, backend="triton"))


@BACKENDS
def test_by_hand(backend: str) -> None:
    """Logits 0 and log 3 have probabilities 1/4 and 3/4."""
    x, weight = torch.ones(2, 1, device=DEVICE), torch.tensor([[0.0], [1.0986123]], device=DEVICE)
    problem = Problem(x, weight, torch.tensor([0, 1], device=DEVICE), torch.ones(2, device=DEVICE))
    found = problem.run(linear_cross_entropy, backend=backend)
    assert found["losses"].tolist() == pytest.approx([1.3862944, 0.2876821])  # log 4, log 4/3
    assert found["dx"].flatten().tolist() == pytest.approx([0.75 * 1.0986123, -0.25 * 1.0986123])
    assert found["dweight"].flatten().tolist() == pytest.approx([-0.75 + 0.25, 0.75 - 0.25])


@BACKENDS
@pytest.mark.parametrize("num_words", [33, 64])
def test_every_label(backend: str, num_words: int) -> None:
    """The first and last, and those at the edges of tiles."""
    problem = make_problem(num_words, num_words, 5, torch.float32)
    problem = Problem(problem.x, problem.weight, torch.arange(num_words, device=DEVICE), problem.dlosses)
    problem.assert_close(problem.run(linear_cross_entropy, backend=backend))


@BACKENDS_AND_DTYPES
@pytest.mark.parametrize("num_words", [2, 37])
def test_extreme_logits(backend: str, dtype: torch.dtype, num_words: int) -> None:
    """Of ±10⁴, which are exact: no sum overflows or is empty, and what is certain has no gradient.

    Row by row logits are high at word 0, low there, all high, all low: with that word as label, then with the last.
    """
    x = torch.zeros(8, 2)
    x[:, 0] = torch.tensor([100.0, -100.0, 0.0, 0.0, 100.0, -100.0, 0.0, 0.0])
    x[:, 1] = torch.tensor([0.0, 0.0, 100.0, -100.0, 0.0, 0.0, 100.0, -100.0])
    weight = torch.zeros(num_words, 2)
    weight[0, 0], weight[:, 1] = 100.0, 100.0
    labels = torch.tensor([0, 0, 0, 0, *[num_words - 1] * 4])
    dlosses = torch.ones(8, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    problem = Problem(x.to(DEVICE, dtype), weight.to(DEVICE, dtype), labels.to(DEVICE), dlosses.to(DEVICE))
    actual, expected = problem.run(linear_cross_entropy, backend=backend), problem.exact().run(oracle)
    assert expected["losses"][0] == 0
    assert expected["losses"][4] == 10_000
    for name, want in expected.items():
        assert relative_rms(actual[name], want) < max(1e-6, RELATIVE_RMS[dtype] if name != "losses" else 0), name
    assert actual["losses"][0] == 0
    assert actual["dx"][0].abs().max() == 0


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_confident_rows_keep_their_gradient(backend: str, dtype: torch.dtype) -> None:
    """1 - p is small where p is nearly 1; to round p first would leave nothing of it."""
    x = torch.tensor([[9.0]], dtype=dtype, device=DEVICE)
    weight = torch.tensor([[1.0], [0.0]], dtype=dtype, device=DEVICE)
    problem = Problem(x, weight, torch.tensor([0], device=DEVICE), torch.ones(1, device=DEVICE))
    actual, expected = problem.run(linear_cross_entropy, backend=backend), problem.exact().run(oracle)
    for name, want in expected.items():  # 1.2e-4 is what is left of 1: ten bits fewer
        assert relative_rms(actual[name], want) < 2e-3, name


@BACKENDS
def test_gradients_of_a_mean_in_float16(backend: str) -> None:
    """Of p / (number of rows): that is below what float16 can tell from zero, a sum is not."""
    problem = make_problem(64, 40, 6, torch.float16)
    problem = Problem(
        problem.x * 1000, problem.weight / 1000, problem.labels, torch.full_like(problem.dlosses, 2.0**-20)
    )
    actual, expected = problem.run(linear_cross_entropy, backend=backend), problem.exact().run(oracle)
    assert relative_rms(actual["dweight"], expected["dweight"]) < 2e-3


@BACKENDS
def test_gradients_of_improbable_words_in_float16(backend: str) -> None:
    """All but one have p = exp(-16): two units of what float16 has between zero and its proper numbers."""
    x = torch.tensor([1.0, 1000.0, 0.0], dtype=torch.float16).expand(64, 3)
    weight = torch.tensor([0.0, 0.0, 1000.0], dtype=torch.float16).repeat(40, 1)
    weight[0] = torch.tensor([16.0, 0.0, 0.0])
    labels = torch.zeros(64, dtype=torch.int64)
    problem = Problem(*(y.to(DEVICE) for y in (x, weight, labels, torch.full((64,), 64.0))))
    actual, expected = problem.run(linear_cross_entropy, backend=backend), problem.exact().run(oracle)
    assert relative_rms(actual["dweight"][1:, 1], expected["dweight"][1:, 1]) < 2e-3
    assert relative_rms(actual["dx"][:, 2], expected["dx"][:, 2]) < 2e-3


@BACKENDS
def test_layouts(backend: str) -> None:
    """Columns first, every other row, and one gradient for all."""
    problem = make_problem(20, 33, 6, torch.float32)
    expected = problem.run(linear_cross_entropy, backend=backend)
    other = Problem(
        problem.x.mT.contiguous().mT,
        problem.weight.repeat_interleave(2, dim=0)[::2],
        problem.labels.repeat_interleave(2)[::2],
        problem.dlosses[:1].expand(20),
    )
    same = Problem(problem.x, problem.weight, problem.labels, other.dlosses.contiguous())
    assert_alike(other.run(linear_cross_entropy, backend=backend), same.run(linear_cross_entropy, backend=backend))
    assert_alike(expected["losses"], other.run(linear_cross_entropy, backend=backend)["losses"])


@BACKENDS
def test_only_some_gradients_are_wanted(backend: str) -> None:
    problem = make_problem(20, 33, 6, torch.float32)
    expected = problem.run(linear_cross_entropy, backend=backend)
    for name in ("x", "weight"):
        leaves = {"x": problem.x.detach(), "weight": problem.weight.detach()}
        leaves[name].requires_grad_()
        losses = linear_cross_entropy(**leaves, labels=problem.labels, backend=backend)
        (found,) = torch.autograd.grad(losses, leaves[name], problem.dlosses)
        assert torch.equal(found, expected[f"d{name}"])


@BACKENDS
def test_no_logits_are_saved(backend: str) -> None:
    problem = make_problem(7, 50, 3, torch.float32)
    saved = saved_by(
        lambda: linear_cross_entropy(problem.x.requires_grad_(), problem.weight, problem.labels, backend=backend)
    )
    assert sorted(tuple(x.shape) for x in saved) == [(1, 7), (1, 7), (1, 7), (1, 7, 3), (1, 50, 3)]


@pytest.mark.parametrize("enough", [1, 2, 100])
def test_parts_of_the_rows(enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tiles of words and three of rows: the latter together, in parts of two and one, or one by one."""
    monkeypatch.setattr(triton_cross_entropy, "ENOUGH_PROGRAMS", 2 * enough)
    problem = make_problem(40, 50, 6, torch.float32)
    first, second = (problem.run(linear_cross_entropy, backend="triton") for _ in range(2))
    problem.assert_close(first)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_unknown_labels_make_triton_losses_nan() -> None:
    """They are the caller's to check, but memory beyond the table is not read."""
    problem = make_problem(3, 5, 4, torch.float32)
    labels = torch.tensor([-100, 2, 5], device=DEVICE)
    losses = linear_cross_entropy(problem.x, problem.weight, labels, backend="triton")
    assert losses.isnan().tolist() == [True, False, True]


def test_gradcheck() -> None:
    problem = make_problem(5, 9, 3, torch.float64, device="cpu")
    run = partial(linear_cross_entropy, labels=problem.labels)
    assert torch.autograd.gradcheck(run, (problem.x.requires_grad_(), problem.weight.requires_grad_()))


# ---- Under transforms ----


def stacked_inputs(backend: str, dims: tuple[int | None, ...], size: int = 3) -> list[Tensor]:
    """Of shapes (20, 6), (35, 6) and (20,), with a new axis of different entries at each given place, or none."""
    dtype = torch.float64 if backend == "torch" else torch.float32
    replicas = [make_problem(20, 35, 6, dtype, seed=seed) for seed in range(size)]
    inputs = [torch.stack([getattr(replica, name) for replica in replicas]) for name in ("x", "weight", "labels")]
    return [x[0] if dim is None else x.movedim(0, dim).contiguous() for x, dim in zip(inputs, dims, strict=True)]


def loss(x: Tensor, weight: Tensor, labels: Tensor, **settings: Any) -> Tensor:
    return linear_cross_entropy(x, weight, labels, **settings).sin().sum()


DIMS = [
    (0, 0, 0),
    (0, None, 0),
    (0, 0, None),
    (None, 0, 0),
    (None, 0, None),
    (None, None, 0),
    (0, None, None),
    (1, 2, 1),
]


@pytest.mark.parametrize(
    ("backend", "dims"),
    [("torch", dims) for dims in DIMS] + [("triton", dims) for dims in (*DIMS[:2], DIMS[4])],
    ids=str,
)
def test_vmap_equals_a_loop(backend: str, dims: tuple[int | None, ...]) -> None:
    """Stacked replicas, of which x, weight and labels are mapped, or some of them; vmap, vmap(grad) and grad(vmap)."""
    inputs = stacked_inputs(backend, dims, size=2)
    run = partial(linear_cross_entropy, backend=backend)
    assert_alike(vmap(run, dims)(*inputs), looped(run, dims, *inputs))
    for argnums in ((0, 1), (0,), (1,)) if backend == "torch" else ((0, 1),):
        gradient = grad(partial(loss, backend=backend), argnums=argnums)
        assert_alike(vmap(gradient, dims)(*inputs), looped(gradient, dims, *inputs))
    total = with_grads(lambda *inputs: vmap(run, dims)(*inputs), *inputs)
    assert_alike(total, with_grads(lambda *inputs: looped(run, dims, *inputs), *inputs))


@pytest.mark.parametrize("outer", [(0, 0, 0), (0, None, 0), (None, 0, None)], ids=str)
@pytest.mark.parametrize("inner", [(0, 0, 0), (0, None, 0), (None, 0, None)], ids=str)
def test_vmap_of_vmap(outer: tuple[int | None, ...], inner: tuple[int | None, ...]) -> None:
    """Of replicas of replicas; both axes are stacked first, the outer one before the inner one."""
    inputs = []
    for x, *dims in zip(stacked_inputs("torch", (0, 0, 0), size=6), outer, inner, strict=True):
        sizes = [size if dim == 0 else 1 for size, dim in zip((2, 3), dims, strict=True)]
        axes = [size for size, dim in zip((2, 3), dims, strict=True) if dim == 0]
        inputs.append(x[: sizes[0] * sizes[1]].reshape(*axes, *x.shape[1:]))
    gradient = grad(loss, argnums=(0, 1))
    mapped = vmap(vmap(gradient, inner), outer)(*inputs)
    assert_alike(mapped, looped(lambda *inputs: looped(gradient, inner, *inputs), outer, *inputs))


def test_replicas_are_one_call_without_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are groups; one for all is not repeated, neither forward (more rows) nor backward (no distance)."""
    shapes: list[Any] = []
    for name in ("forward", "backward"):
        original = getattr(triton_cross_entropy, name)

        def spy(*inputs: Any, original: Any = original, first: int = int(name == "backward"), **flags: Any) -> Any:
            x, weight = inputs[first : first + 2]
            shapes.append([tuple(x.shape), tuple(weight.shape), weight.stride(0)])
            return original(*inputs, **flags)

        monkeypatch.setattr(triton_cross_entropy, name, spy)
    gradient = grad(partial(loss, backend="triton"), argnums=(0, 1))
    vmap(gradient)(*stacked_inputs("triton", (0, 0, 0)))
    assert shapes == [[(3, 20, 6), (3, 35, 6), 210]] * 2
    shapes.clear()
    vmap(gradient, (0, None, 0))(*stacked_inputs("triton", (0, None, 0)))
    assert shapes == [[(1, 60, 6), (1, 35, 6), 210], [(3, 20, 6), (3, 35, 6), 0]]


@BACKENDS
def test_jacobians(backend: str) -> None:
    """Only the gradient that comes in is mapped."""
    x, weight, labels = stacked_inputs(backend, (None, None, None))
    x, labels = x[:4], labels[:4]
    expected = jacrev(oracle, argnums=(0, 1))(x, weight, labels)
    actual = jacrev(partial(linear_cross_entropy, backend=backend), argnums=(0, 1))(x, weight, labels)
    assert_alike(actual, expected)


@pytest.mark.parametrize("dims", [(0, None, 0), (0, 0, 0)], ids=str)
def test_vmap_over_nothing(dims: tuple[int | None, ...]) -> None:
    inputs = stacked_inputs("torch", dims)
    inputs = [x if dim is None else x[:0] for x, dim in zip(inputs, dims, strict=True)]
    grads = vmap(grad(loss, argnums=(0, 1)), dims)(*inputs)
    assert [tuple(x.shape) for x in grads] == [(0, 20, 6), (0, 35, 6)]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # forward mode makes torch load TorchScript
@pytest.mark.parametrize("transform", ["jvp", "double backward"])
def test_refuses_other_derivatives(transform: str) -> None:
    x, weight, labels = stacked_inputs("torch", (None, None, None))
    if transform == "jvp":
        with pytest.raises(RuntimeError, match="jvp function"):
            jvp(lambda x: linear_cross_entropy(x, weight, labels), (x,), (x,))
        return
    assert_refuses_double_backward(loss, x, weight, labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_opcheck(dtype: torch.dtype) -> None:
    """Schemas, fake tensors, strides and registration, of both operators."""
    problem = make_problem(4, 9, 5, dtype, device="cpu")
    inputs = (problem.x[None], problem.weight[None], problem.labels[None])
    _, peaks, log_sums = torch.ops.rebased.linear_cross_entropy(*inputs, "auto")
    for wanted in ((True, True), (True, False), (False, True)):
        backward = (problem.dlosses[None], *inputs, peaks, log_sums, *wanted, "auto")
        torch.library.opcheck(torch.ops.rebased.linear_cross_entropy_backward.default, backward)
    leaves = [x.clone().requires_grad_() for x in inputs[:2]]
    torch.library.opcheck(torch.ops.rebased.linear_cross_entropy.default, (*leaves, inputs[2], "auto"))


@compiles
@BACKENDS
def test_compile(backend: str) -> None:
    inputs = stacked_inputs(backend, (None, None, None))
    run = partial(linear_cross_entropy, backend=backend)
    assert_alike(with_grads(compiled(run), *inputs), with_grads(run, *inputs))


@compiles
def test_compile_of_vmap() -> None:
    """As replicas are trained: autograd is outside, or inside."""
    inputs = stacked_inputs("torch", (0, 0, 0))
    run = vmap(linear_cross_entropy)
    assert_alike(with_grads(compiled(run), *inputs), with_grads(run, *inputs))
    gradient = vmap(grad(loss, argnums=(0, 1)))
    assert_alike(compiled(gradient)(*inputs), gradient(*inputs))


@compiles
def test_compile_adapts_to_lengths() -> None:
    run = compiled(linear_cross_entropy, dynamic=True)
    for num_rows in (5, 7):
        problem = make_problem(num_rows, 9, 6, torch.float64)
        inputs = problem.x, problem.weight, problem.labels
        with torch.compiler.set_stance("fail_on_recompile" if num_rows == 7 else "default"):
            assert_alike(with_grads(run, *inputs), with_grads(linear_cross_entropy, *inputs))


@pytest.mark.parametrize("mapped", [False, True])
def test_autocast_casts_as_for_a_product(mapped: bool) -> None:
    """Gradients come back in float32, and are those of the rounded inputs."""
    problem = make_problem(20, 35, 6, torch.float32, device="cpu")
    rounded = Problem(problem.x.bfloat16(), problem.weight.bfloat16(), problem.labels, problem.dlosses)
    expected = rounded.run(linear_cross_entropy)

    def run(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        if mapped:
            return vmap(linear_cross_entropy)(x[None], weight[None], labels[None])[0]
        return linear_cross_entropy(x, weight, labels)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = problem.run(run)
    for name, want in expected.items():
        assert torch.equal(actual[name], want.float()), name
    mixed = Problem(problem.x.bfloat16(), problem.weight, problem.labels, problem.dlosses)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as it is after a product, with a parameter
        assert torch.equal(mixed.run(run)["losses"], expected["losses"])


# ---- Bad input ----

X, WEIGHT, LABELS = torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("error", "message", "inputs", "settings"),
    [
        (TypeError, r"x is a list; it must be a tensor", ([1.0], WEIGHT, LABELS), {}),
        (TypeError, r"weight is a NoneType", (X, None, LABELS), {}),
        (TypeError, r"labels is a list", (X, WEIGHT, [0, 0]), {}),
        (ValueError, r"x has dtype torch.int64; it may be float16", (X.long(), WEIGHT, LABELS), {}),
        (ValueError, r"x has shape \(1, 2, 3\); it must have 2 axes \(N, W\)", (X[None], WEIGHT, LABELS), {}),
        (ValueError, r"x has shape \(2, 0\); its last axis", (X[:, :0], WEIGHT[:, :0], LABELS), {}),
        (ValueError, r"weight has shape \(3,\); it must have 2 axes \(V, W\)", (X, WEIGHT[0], LABELS), {}),
        (ValueError, r"weight has shape \(5, 2\); it must be \(5, 3\)", (X, WEIGHT[:, :2], LABELS), {}),
        (ValueError, r"weight has shape \(0, 3\); there must be at least one", (X, WEIGHT[:0], LABELS), {}),
        (ValueError, r"weight has dtype torch.float64, x has torch.float32", (X, WEIGHT.double(), LABELS), {}),
        (ValueError, r"weight is on meta, x on cpu", (X, WEIGHT.to("meta"), LABELS), {}),
        (ValueError, r"labels has dtype torch.int32; it must be int64", (X, WEIGHT, LABELS.int()), {}),
        (ValueError, r"labels has shape \(1,\); it must be \(2,\)", (X, WEIGHT, LABELS[:1]), {}),
        (ValueError, r"labels is on meta, x on cpu", (X, WEIGHT, LABELS.to("meta")), {}),
        (ValueError, r"backend='cuda' is unknown; it may be 'auto', 'torch', 'triton'", None, {"backend": "cuda"}),
        (
            ValueError,
            r"backend='triton' .* x has dtype float64; use",
            (X.double(), WEIGHT.double(), LABELS),
            {"backend": "triton"},
        ),
    ],
)
def test_bad_input(error: type[Exception], message: str, inputs: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(error, match=f"^{message}"):
        linear_cross_entropy(*(inputs or (X, WEIGHT, LABELS)), **settings)


def test_triton_without_a_gpu_or_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "IS_INTERPRETED", False)
    with pytest.raises(ValueError, match="backend='triton' needs a CUDA device, and x is on cpu"):
        linear_cross_entropy(X, WEIGHT, LABELS, backend="triton")


def test_auto_tells_its_choice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="rebased.ops.backends"):
        linear_cross_entropy(X, WEIGHT, LABELS)
    assert caplog.messages == ["backend='auto' chose 'torch' for (1, 2, 3) on cpu"]


# ---- On a GPU ----


def unfused(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Of all replicas. As under autocast: a product in the inputs' dtype, all else in float32 or more."""
    logits = x @ weight.mT
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="none").view_as(labels)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("num_rows", "num_words", "width"),
    [
        (4096, 8192, 48),
        (4001, 8200, 48),  # neither is a multiple of a tile
        (1000, 300, 17),  # rows that cannot be copied 16 bytes at a time; dweight is summed in parts
        (1024, 1024, 16),
        (1024, 1024, 128),
        (1024, 1024, 200),  # in float32, rows of logits in memory
        (1024, 1024, 512),
        (1000, 50304, 768),  # in all, as in a language model
    ],
)
def test_large_on_a_gpu(
    num_rows: int, num_words: int, width: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three replicas by vmap and by "auto": at most twice the error of the same without fusion, equal in every run.

    In float32, whose products are made of three in TF32: or 1e-6. An emulation of that on a CPU was off by up to 5e-7
    for 256 rows of the first case, where torch was off by half as much.
    """
    monkeypatch.undo()
    replicas = [make_problem(num_rows, num_words, width, dtype, scale=3.0, seed=seed) for seed in range(3)]
    names = ("x", "weight", "labels", "dlosses")
    problem = Problem(*(torch.stack([getattr(replica, name) for replica in replicas]).cuda() for name in names))
    actual = problem.run(vmap(linear_cross_entropy))
    baseline, expected = problem.run(unfused), problem.exact().run(unfused)
    floor = 1e-6 if dtype == torch.float32 else 0.0
    for name, want in expected.items():
        error, usual = relative_rms(actual[name], want), relative_rms(baseline[name], want)
        assert error <= max(2 * usual, floor), f"{name}: off by {error:.2e}, without fusion {usual:.2e}"
    for _ in range(3):
        again = problem.run(vmap(linear_cross_entropy))
        assert all(torch.equal(again[name], actual[name]) for name in actual)


@pytest.mark.gpu
def test_certain_rows_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The label's own logit, which a product of its own makes, has the bits of the one that the sum has."""
    monkeypatch.undo()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x = torch.randn(512, 48, generator=torch.Generator().manual_seed(0)).cuda().to(dtype)
        labels = torch.arange(512, device="cuda")
        losses = linear_cross_entropy(x * 30, x, labels, backend="triton")
        assert losses.abs().max() == 0


@pytest.mark.gpu
def test_memory_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits would be 4 GiB in bfloat16; x has 12 MiB, weight 6."""
    monkeypatch.undo()
    x, weight = (torch.randn(size, 48, device="cuda", dtype=torch.bfloat16) for size in (2**17, 2**14))
    labels = torch.randint(2**14, (2**17,), device="cuda")
    x.requires_grad_()
    weight.requires_grad_()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_cross_entropy(x, weight, labels).mean().backward()
    assert torch.cuda.max_memory_allocated() - before < 64 * 2**20
