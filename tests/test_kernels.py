"""Kernels: values worked by hand, features that agree with them, what they declare, and what they refuse."""

import math
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses import FakeTensorMode

from rebased.kernels import (
    BASED,
    DPFP,
    ELEMENTWISE_SQUARE,
    ELU_PLUS_ONE,
    REBASED,
    RELU,
    RFA,
    CosFormer,
    FeatureMap,
    Kernel,
    Polynomial,
    Power,
)
from rebased.monomials import monomial_weights, monomials
from rebased.ops import attention_matrix, initial_state, kernel_attention, kernel_attention_step

BACKENDS = ["reference", "chunked"]


def vector(*numbers: float) -> Tensor:
    """One float64 query or key of one head: (1, 1, F)."""
    return torch.tensor(numbers, dtype=torch.float64)[None, None]


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# ---- Worked by hand: q = (1, 2), k = (3, -1), so qᵀk = 1 and, at the polynomials' own scale, s = 1/√2 ----


@pytest.mark.parametrize(
    ("kernel", "scale", "expected"),
    [
        pytest.param(REBASED, None, 1 / 2, id="rebased: s²"),
        pytest.param(REBASED, 2.0, 4.0, id="rebased, s = 2"),
        pytest.param(BASED, None, 1 + 1 / math.sqrt(2) + 1 / 4, id="based: 1 + s + s²/2"),
        pytest.param(BASED, 2.0, 5.0, id="based, s = 2"),
        pytest.param(BASED, -1.0, 0.5, id="based at its minimum, s = -1"),
        pytest.param(Polynomial(3, -2, 0.25), 2.0, 0.0, id="3 - 2s + s²/4, s = 2"),
        pytest.param(Power(4), None, 1 / 4, id="power 4: s⁴"),
        pytest.param(Power(8), 2.0, 256.0, id="power 8, s = 2"),
        pytest.param(ELU_PLUS_ONE, None, 8 + 3 / math.e, id="elu+1: (2, 3)·(4, 1/e)"),
        pytest.param(RELU, None, 3.0, id="relu: (1, 2)·(3, 0)"),
        pytest.param(ELEMENTWISE_SQUARE, None, 13.0, id="element-wise square: (1, 4)·(9, 1)"),
        pytest.param(ELEMENTWISE_SQUARE, 2.0, 52.0, id="element-wise square of 2q"),
    ],
)
def test_similarity_by_hand(kernel: Kernel, scale: float | None, expected: float) -> None:
    assert kernel.similarity(vector(1, 2), vector(3, -1), scale=scale).item() == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("i", "j", "cosine"),
    [(0, 0, 1.0), (2, 0, 0.5), (0, 2, 0.5), (2, 1, math.sqrt(3) / 2)],  # a third of the way is an angle of π/6
)
def test_cosformer_weighs_by_distance(i: int, j: int, cosine: float) -> None:
    similarity = CosFormer(max_len=3).similarity(vector(1, 2), vector(3, -1), torch.tensor([i]), torch.tensor([j]))
    assert similarity.item() == pytest.approx(3 * cosine, rel=1e-15)


def test_cosformer_counts_positions_from_zero_if_none_are_given() -> None:
    kernel, q, k = CosFormer(max_len=9), randn(2, 5, 3, 4), randn(2, 7, 3, 4, seed=1)
    given = kernel.similarity(q, k, torch.arange(5), torch.arange(7))
    assert torch.equal(kernel.similarity(q, k), given)
    assert not torch.equal(kernel.similarity(q, k, torch.arange(5) + 1, torch.arange(7)), given)


def test_cosformer_takes_positions_per_sequence() -> None:
    kernel, q = CosFormer(max_len=9), randn(2, 3, 1, 4)
    positions = torch.tensor([[0, 1, 2], [4, 0, 8]])
    together = kernel.key_features(q, positions)
    apart = torch.stack([kernel.key_features(q[b], positions[b]) for b in range(2)])
    assert torch.equal(together, apart)


def test_dpfp_by_hand() -> None:
    # r(1, 2, 3) = (1, 2, 3, 0, 0, 0); rolled by 1: (0, 1, 2, 3, 0, 0); by 2: (0, 0, 1, 2, 3, 0)
    features = DPFP(nu=2).key_features(vector(1, 2, 3))
    assert features.flatten().tolist() == [0, 2, 6, 0, 0, 0, 0, 0, 3, 0, 0, 0]
    # r(1, -1, 2) = (1, 0, 2, 0, 1, 0) meets itself only two places on: (1, 0, 2, 0, 2, 0)
    features = DPFP(nu=2).key_features(vector(1, -1, 2))
    assert features.flatten().tolist() == [0, 0, 0, 0, 0, 0, 1, 0, 2, 0, 2, 0]
    assert DPFP(nu=2).similarity(vector(1, 2, 3), vector(1, -1, 2)).item() == 6
    assert DPFP(nu=1).similarity(vector(1, 2, 3), vector(1, -1, 2)).item() == 0


def test_monomials_by_hand() -> None:
    x = torch.tensor([2.0, 3.0, 5.0])
    assert monomials(x, 2).tolist() == [4, 6, 10, 9, 15, 25]
    assert monomial_weights(3, 2) == (1, 2, 2, 1, 2, 1)
    assert monomials(x[:2], 3).tolist() == [8, 12, 18, 27]
    assert monomial_weights(2, 3) == (1, 3, 3, 1)
    assert monomials(x, 0).tolist() == [1]


# ---- RFA ----


def test_rfa_is_the_mean_cosine_of_projected_differences() -> None:
    kernel = RFA(2, num_random=3, seed=4)
    q, k = torch.tensor([0.6, 0.8], dtype=torch.float64), torch.tensor([-1.0, 0.0], dtype=torch.float64)
    cosines = [math.cos(w @ (q - k)) for w in kernel.projection.T]
    similarity = kernel.similarity(vector(0.6, 0.8), vector(-1, 0)).item()
    assert similarity == pytest.approx(sum(cosines) / 3, rel=1e-13)


def test_rfa_sees_directions_only() -> None:
    kernel, q, k = RFA(4, num_random=8), randn(5, 2, 4), randn(6, 2, 4, seed=1)
    torch.testing.assert_close(kernel.similarity(7 * q, k / 3), kernel.similarity(q, k), rtol=0, atol=1e-14)
    same = kernel.similarity(q, q).diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(same, torch.ones_like(same), rtol=0, atol=1e-14)


@pytest.mark.parametrize("num_random", [100, 40_000])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_rfa_tends_to_the_gaussian_kernel(num_random: int, sigma: float) -> None:
    """cos(w·d) has mean g = exp(-|d|²/2σ²) and standard deviation (1 - g²)/√2: five of the mean's are allowed."""
    q, k = (torch.nn.functional.normalize(randn(6, 1, 5, seed=seed), dim=-1) for seed in (0, 1))
    similarity = RFA(5, num_random, sigma=sigma).similarity(q, k)[0]
    gaussian = torch.exp(-torch.cdist(q[:, 0], k[:, 0]).square() / (2 * sigma**2))
    allowed = 5 * (1 - gaussian.square()) / math.sqrt(2 * num_random)
    assert ((similarity - gaussian).abs() <= allowed).all()


def test_rfa_draws_from_its_seed() -> None:
    x = randn(3, 2, 4)
    features = RFA(4, 8, seed=1).key_features(x)
    torch.manual_seed(99)  # the global generator has no say
    assert torch.equal(RFA(4, 8, seed=1).key_features(x), features)
    assert not torch.equal(RFA(4, 8, seed=2).key_features(x), features)
    assert RFA(4, 8, seed=1).name == RFA(4, 8, seed=1).name != RFA(4, 8, seed=2).name


def test_rfa_keeps_its_projection_for_whoever_comes_next() -> None:
    """Copied once, for whatever asks first: not for a tracer, nor as a tensor that has no gradients."""
    kernel, x = RFA(4, 8), randn(3, 2, 4).float().requires_grad_()
    with FakeTensorMode(allow_non_fake_inputs=True):
        kernel.key_features(torch.zeros(3, 2, 4))
    with torch.inference_mode():
        kernel.key_features(x)
    first = kernel._projection_on(x.device, x.dtype)
    kernel.key_features(x).sum().backward()
    copied = pickle.loads(pickle.dumps(kernel))
    for map in (kernel.key_features, torch.vmap(kernel.key_features)):
        compiled = torch.compile(map, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), copied.key_features(x))
    assert kernel._projection_on(x.device, x.dtype) is first
    assert torch.equal(first, kernel.projection.float())


# ---- Similarity and features, each against its formula, written out for all pairs at once ----

Formula = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def polynomial(*coefficients: float) -> Formula:
    def formula(q: Tensor, k: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = (q * k).sum(-1) / math.sqrt(q.shape[-1])
        return sum((c * s**degree for degree, c in enumerate(coefficients)), torch.zeros_like(s))

    return formula


def dpfp(nu: int) -> Formula:
    def formula(q: Tensor, k: Tensor, i: Tensor, j: Tensor) -> Tensor:
        rectified = [torch.cat([x, -x], dim=-1).clamp(min=0) for x in (q, k)]
        size = rectified[0].shape[-1]
        total = torch.zeros(())
        for shift in range(1, nu + 1):
            for index in range(size):
                r, s = (x[..., index] * x[..., (index - shift) % size] for x in rectified)
                total = total + r * s
        return total

    return formula


def mean_cosine(q: Tensor, k: Tensor, i: Tensor, j: Tensor) -> Tensor:
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    return torch.cos((q - k) @ RFA(q.shape[-1], 7).projection).mean(-1)


KERNELS: dict[str, tuple[Callable[[int], Kernel], Formula]] = {
    "rebased": (lambda F: REBASED, polynomial(0, 0, 1)),
    "based": (lambda F: BASED, polynomial(1, 1, 0.5)),
    "constant": (lambda F: Polynomial(2, 0, 0), polynomial(2)),
    "linear": (lambda F: Polynomial(0, -3, 0), polynomial(0, -3)),
    "any signs": (lambda F: Polynomial(-1, 2, -0.7), polynomial(-1, 2, -0.7)),
    "power 2": (lambda F: Power(2), polynomial(0, 0, 1)),
    "power 4": (lambda F: Power(4), polynomial(*[0] * 4, 1)),
    "power 6": (lambda F: Power(6), polynomial(*[0] * 6, 1)),
    "power 8": (lambda F: Power(8), polynomial(*[0] * 8, 1)),
    "elu+1": (
        lambda F: ELU_PLUS_ONE,
        lambda q, k, i, j: math.prod(torch.where(x > 0, x + 1, x.exp()) for x in (q, k)).sum(-1),
    ),
    "relu": (lambda F: RELU, lambda q, k, i, j: (q.clamp(min=0) * k.clamp(min=0)).sum(-1)),
    "elementwise square": (lambda F: ELEMENTWISE_SQUARE, lambda q, k, i, j: (q * k).square().sum(-1)),
    "cosformer": (
        lambda F: CosFormer(12),
        lambda q, k, i, j: (q.clamp(min=0) * k.clamp(min=0)).sum(-1) * torch.cos((i - j).double() * math.pi / 24),
    ),
    "dpfp 1": (lambda F: DPFP(), dpfp(1)),
    "dpfp 3": (lambda F: DPFP(3), dpfp(3)),
    "rfa": (lambda F: RFA(F, 7), mean_cosine),
}


@pytest.mark.parametrize("name", KERNELS)
@given(
    batch=st.sampled_from([(), (2,), (2, 3)]),
    num_queries=st.integers(1, 4),
    num_keys=st.integers(1, 5),
    num_heads=st.integers(1, 3),
    feature_dim=st.integers(1, 8),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=25)
def test_features_and_similarity_agree_with_the_formula(
    name: str, batch: tuple[int, ...], num_queries: int, num_keys: int, num_heads: int, feature_dim: int, seed: int
) -> None:
    make, formula = KERNELS[name]
    kernel = make(feature_dim)
    q = randn(*batch, num_queries, num_heads, feature_dim, seed=seed)
    k = randn(*batch, num_keys, num_heads, feature_dim, seed=seed + 1)
    i, j = torch.arange(3, 3 + num_queries), torch.arange(num_keys)
    q_features, k_features = kernel.query_features(q, i), kernel.key_features(k, j)
    assert q_features.shape == (*q.shape[:-1], kernel.num_features(feature_dim))
    assert k_features.shape == (*k.shape[:-1], kernel.num_features(feature_dim))

    pairs = q.transpose(-3, -2)[..., :, None, :], k.transpose(-3, -2)[..., None, :, :]  # (*B, H, T, 1, F), (…, 1, S, F)
    expected = formula(*pairs, i[:, None], j)
    magnitude = torch.einsum("...the,...she->...hts", q_features.abs(), k_features.abs())
    products = torch.einsum("...the,...she->...hts", q_features, k_features)
    similarity = kernel.similarity(q, k, i, j)
    assert similarity.shape == (*batch, num_heads, num_queries, num_keys)
    assert ((products - expected).abs() <= 1e-12 * magnitude).all()
    assert ((similarity - expected).abs() <= 1e-12 * magnitude).all()


# ---- What a kernel says of itself ----


@pytest.mark.parametrize(
    ("kernel", "feature_dim", "expected"),
    [
        pytest.param(REBASED, 16, 136, id="rebased: F(F+1)/2"),
        pytest.param(BASED, 16, 153, id="based: 1 + F + F(F+1)/2"),
        pytest.param(BASED, 1, 3, id="based, F=1"),
        pytest.param(Polynomial(0, 1, 0), 16, 16, id="linear"),
        pytest.param(Power(4), 16, 3876, id="power 4: C(F+3, 4)"),
        pytest.param(Power(6), 5, 210, id="power 6: C(F+5, 6)"),
        pytest.param(ELU_PLUS_ONE, 16, 16, id="elu+1"),
        pytest.param(RELU, 3, 3, id="relu"),
        pytest.param(ELEMENTWISE_SQUARE, 16, 16, id="element-wise square"),
        pytest.param(CosFormer(7), 16, 32, id="cosformer: 2F"),
        pytest.param(DPFP(3), 16, 96, id="dpfp: 2F·nu"),
        pytest.param(RFA(16, 64), 16, 128, id="rfa: 2·num_random"),
    ],
)
def test_number_of_features(kernel: Kernel, feature_dim: int, expected: int) -> None:
    assert kernel.num_features(feature_dim) == expected
    assert kernel.key_features(randn(2, 1, feature_dim)).shape[-1] == expected


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ("linear", "any signs", "rfa")])
def test_declared_nonnegative_is_never_negative(name: str) -> None:
    kernel = KERNELS[name][0](6)
    assert kernel.nonnegative
    sizes = torch.logspace(-3, 3, 40)[:, None, None]
    q, k = (randn(40, 2, 6, seed=seed, dtype=torch.float32) * sizes for seed in (0, 1))
    k[:6] = -q[:6]
    positions = torch.arange(40) % 12
    scale = kernel.default_scale(6) / 1000  # Power(8) of 1e3 leaves float32's range otherwise
    assert (kernel.similarity(q, k, positions, positions, scale=scale) >= 0).all()


@pytest.mark.parametrize("name", ["linear", "any signs", "rfa"])
def test_kernels_that_can_be_negative_say_so(name: str) -> None:
    kernel = KERNELS[name][0](6)
    assert not kernel.nonnegative
    assert kernel.similarity(randn(40, 2, 6), randn(40, 2, 6, seed=1)).min() < 0


@pytest.mark.parametrize(
    ("c0", "c1", "c2"),
    [
        pytest.param(0, 0, 1, id="s²"),
        pytest.param(1, 1, 0.5, id="no real root"),
        pytest.param(1, 2, 1, id="a double root"),
        pytest.param(1, -2, 1, id="a double root on the right"),
        pytest.param(1, 2.001, 1, id="two roots close together"),
        pytest.param(0, 1, 1, id="a root at zero and one below"),
        pytest.param(0, -1, 1, id="a root at zero and one above"),
        pytest.param(0, 1, 0, id="a line"),
        pytest.param(5, 1, 0, id="a line above zero at zero"),
        pytest.param(2, 0, 0, id="a positive constant"),
        pytest.param(-2, 0, 0, id="a negative constant"),
        pytest.param(-1, 0, 1, id="below zero at zero"),
        pytest.param(1, 0, -1, id="open downwards"),
        pytest.param(0, 0, -1, id="-s²"),
        pytest.param(-1, 0, -1, id="negative everywhere, with no root"),
    ],
)
def test_polynomial_knows_whether_it_goes_below_zero(c0: float, c1: float, c2: float) -> None:
    kernel = Polynomial(c0, c1, c2)
    points = [-1e4, *(n / 4 for n in range(-16, 17)), 1e4]  # exact in binary, so a double root is exactly 0
    if c2:
        points.append(-c1 / (2 * c2))
    s = torch.tensor(points, dtype=torch.float64)[:, None, None]
    values = kernel.similarity(s, vector(1), scale=1.0)
    assert kernel.nonnegative == bool((values >= 0).all())


def test_polynomial_with_tensors_is_not_taken_for_nonnegative() -> None:
    one = torch.tensor(1.0)
    assert not Polynomial(0, 0, one).nonnegative
    assert Polynomial(0, 0, one, nonnegative=True).nonnegative
    assert not Polynomial(0, 0, 1, nonnegative=False).nonnegative


@pytest.mark.parametrize("kernel", [REBASED, BASED, Power(4)], ids=["rebased", "based", "power 4"])
def test_polynomials_divide_by_the_root_of_feature_dim(kernel: Kernel) -> None:
    q, k = randn(3, 2, 9), randn(4, 2, 9, seed=1)
    assert kernel.default_scale(9) == 1 / 3
    assert torch.equal(kernel.similarity(q, k), kernel.similarity(q, k, scale=1 / 3))
    assert torch.equal(kernel.query_features(q), kernel.query_features(q, scale=1 / 3))
    torch.testing.assert_close(kernel.similarity(q, k), kernel.similarity(q / 3, k, scale=1.0))


@pytest.mark.parametrize(
    "kernel",
    [ELU_PLUS_ONE, RELU, ELEMENTWISE_SQUARE, CosFormer(8), DPFP(2)],
    ids=["elu+1", "relu", "elementwise square", "cosformer", "dpfp"],
)
def test_feature_maps_do_not_scale_by_default(kernel: Kernel) -> None:
    q, k = randn(3, 2, 9), randn(4, 2, 9, seed=1)
    assert kernel.default_scale(9) == 1
    assert torch.equal(kernel.query_features(q), kernel.key_features(q))
    assert torch.equal(kernel.similarity(q, k, scale=0.5), kernel.similarity(q / 2, k))


def test_kernels_compare_by_identity() -> None:
    twin = Polynomial(0, 0, 1)
    assert twin == twin
    assert twin != REBASED
    assert len({REBASED, twin, REBASED}) == 2


def test_names_tell_apart_what_states_hold() -> None:
    """Coefficients stay on the query side, so kernels of the same degrees share states; others must not."""
    assert REBASED.name == Power(2).name == Polynomial(0, 0, -3).name
    assert BASED.name == Polynomial(*torch.rand(3)).name
    others = [
        REBASED,
        BASED,
        Power(4),
        ELU_PLUS_ONE,
        RELU,
        ELEMENTWISE_SQUARE,
        CosFormer(4),
        CosFormer(5),
        DPFP(),
        DPFP(2),
    ]
    assert len({kernel.name for kernel in others}) == len(others)


# ---- Coefficients that are tensors ----


def test_coefficients_shared_and_per_head() -> None:
    kernel = Polynomial(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(10.0), 100)
    q, k = torch.full((1, 3, 1), 2.0), torch.ones(1, 3, 1)
    expected = [421.0, 422.0, 423.0]  # c0 + 10·2 + 100·4
    assert kernel.similarity(q, k, scale=1.0).flatten().tolist() == expected
    products = kernel.query_features(q, scale=1.0) * kernel.key_features(k)
    assert products.sum(-1).flatten().tolist() == expected


def test_coefficients_do_not_touch_the_keys() -> None:
    k = randn(3, 2, 4)
    assert torch.equal(Polynomial(*torch.rand(3)).key_features(k), BASED.key_features(k))


def test_a_tensor_of_zero_keeps_its_term() -> None:
    """It is there to be learned; only numbers drop their term."""
    assert Polynomial(0, torch.tensor(0.0), 1).degrees == (1, 2)
    assert Polynomial(0, 0.0, 1).degrees == (2,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(), (2,)], ids=["shared", "per head"])
def test_learnable_coefficients_get_gradients(backend: str, shape: tuple[int, ...]) -> None:
    """Of one token without normaliser, out = (c0 + c1·s + c2·s²)·v, so d(Σ out)/dc_d = s^d · Σ v."""
    c = [torch.nn.Parameter(torch.tensor(value).expand(shape).clone().double()) for value in (0.3, -2.0, 1.5)]
    q, k, v = randn(1, 1, 2, 3), randn(1, 1, 2, 3, seed=1), randn(1, 1, 2, 5, seed=2)
    kernel_attention(q, k, v, Polynomial(*c), normalize=False, backend=backend).sum().backward()
    s = (q * k).sum(-1).flatten() / math.sqrt(3)
    for degree, parameter in enumerate(c):
        per_head = s**degree * v.sum(-1).flatten()
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, per_head if shape else per_head.sum())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_learning_changes_what_the_kernel_computes(backend: str) -> None:
    c2 = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    kernel, q, v = Polynomial(1, 0, c2), randn(1, 6, 2, 3), randn(1, 6, 2, 5)
    with torch.no_grad():
        c2.copy_(4.0)
    learned = kernel_attention(q, q, v, kernel, backend=backend)
    torch.testing.assert_close(learned, kernel_attention(q, q, v, Polynomial(1, 0, 4), backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_coefficient_per_head_or_none(backend: str) -> None:
    kernel = Polynomial(1, torch.ones(4), 1)
    q = randn(1, 3, 2, 4)
    with pytest.raises(ValueError, match="c1 has 4 entries, queries have 2 heads"):
        kernel_attention(q, q, q, kernel, backend=backend)
    with pytest.raises(ValueError, match="c1 has 4 entries, queries have 2 heads"):
        kernel.similarity(q, q)


# ---- Bad arguments ----


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        pytest.param(lambda: Polynomial("1", 0, 1), TypeError, "^c0 is '1'", id="c0 a string"),
        pytest.param(lambda: Polynomial(0, True, 1), TypeError, "^c1 is True", id="c1 a bool"),
        pytest.param(lambda: Polynomial(0, 0, None), TypeError, "^c2 is None", id="c2 missing"),
        pytest.param(lambda: Polynomial(0, 0, math.nan), ValueError, "^c2=nan", id="c2 not a number"),
        pytest.param(lambda: Polynomial(math.inf, 0, 1), ValueError, "^c0=inf", id="c0 infinite"),
        pytest.param(lambda: Polynomial(0, torch.tensor(1), 1), ValueError, "^c1 .*int64", id="c1 of integers"),
        pytest.param(lambda: Polynomial(0, 0, torch.ones(2, 2)), ValueError, "^c2 .*2 axes", id="c2 with two axes"),
        pytest.param(lambda: Polynomial(0, 0.0, 0), ValueError, "^c0, c1 and c2", id="nothing left"),
        *(pytest.param(lambda p=p: Power(p), ValueError, "^p=", id=f"p={p!r}") for p in (0, -2, 3, 10, 2.0, True, "2")),
        *(pytest.param(lambda n=n: CosFormer(n), ValueError, "^max_len=", id=f"max_len={n}") for n in (0, -1)),
        *(pytest.param(lambda n=n: CosFormer(n), TypeError, "^max_len is", id=f"max_len={n}") for n in (2.5, True)),
        *(pytest.param(lambda n=n: DPFP(n), ValueError, "^nu=", id=f"nu={n}") for n in (0, -1)),
        *(pytest.param(lambda n=n: DPFP(n), TypeError, "^nu is", id=f"nu={n}") for n in (1.0, True)),
        *(pytest.param(lambda n=n: RFA(n), ValueError, "^feature_dim=", id=f"rfa feature_dim={n}") for n in (0, -4)),
        pytest.param(lambda: RFA(4.0), TypeError, "^feature_dim is 4.0", id="rfa feature_dim=4.0"),
        pytest.param(lambda: RFA(4, 0), ValueError, "^num_random=0", id="num_random=0"),
        *(
            pytest.param(lambda x=x: RFA(4, sigma=x), ValueError, "^sigma=", id=f"sigma={x}")
            for x in (0.0, -1.0, math.nan, math.inf)
        ),
        pytest.param(lambda: RFA(4, sigma="1"), TypeError, "^sigma", id="sigma a string"),
        pytest.param(lambda: RFA(4, sigma=True), TypeError, "^sigma is True", id="sigma a bool"),
        pytest.param(
            lambda: RFA(4).key_features(torch.zeros(1, 1, 5)), ValueError, "feature_dim=5.*made for 4", id="rfa of 5"
        ),
        pytest.param(lambda: FeatureMap(3, name="three"), TypeError, "^map", id="map not callable"),
        pytest.param(lambda: FeatureMap(torch.exp, name=None), TypeError, "^name", id="name not a string"),
    ],
)
def test_bad_argument_is_named(make: Callable[[], object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


# ---- A user's own ----


def test_repr_names_the_kernel() -> None:
    assert repr(FeatureMap(torch.exp, name="exp")) == "FeatureMap(exp)"
    assert repr(BASED) == "Polynomial(1, 1, 0.5)"
    assert repr(Polynomial(0, torch.ones(3), 2)) == "Polynomial(0, tensor(3,), 2)"
    assert repr(Power(4)) == "Power(4)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_own_feature_map_end_to_end(backend: str, dtype: torch.dtype) -> None:
    """One with weights of its own: whole, streamed, stepped and looked at, with gradients for the weights."""
    weights = randn(3, 6, dtype=dtype).requires_grad_()
    kernel = FeatureMap(lambda x: (x @ weights).exp(), name="exp of a projection", nonnegative=True)
    q, k, v = randn(2, 9, 4, 3, dtype=dtype), randn(2, 9, 2, 3, seed=1, dtype=dtype), randn(2, 9, 2, 5, dtype=dtype)

    out, state = kernel_attention(q, k, v, kernel, scale=0.5, return_state=True, backend=backend)
    assert state.values.shape == initial_state(kernel, 2, 2, 3, 5, dtype=dtype).values.shape == (2, 2, 6, 5)
    q_features, k_features = (q / 2 @ weights).exp(), (k @ weights).exp().repeat_interleave(2, dim=2)
    weight_of_keys = torch.einsum("bthe,bshe->bhts", q_features, k_features).tril()
    weight_of_keys = weight_of_keys / weight_of_keys.sum(-1, keepdim=True)
    expected = torch.einsum("bhts,bshd->bthd", weight_of_keys, v.repeat_interleave(2, dim=2))
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(attention_matrix(q, k, kernel, scale=0.5), weight_of_keys)
    cotangent = randn(*out.shape, dtype=dtype)
    actual_grad, expected_grad = (torch.autograd.grad(y, weights, cotangent)[0] for y in (out, expected))
    torch.testing.assert_close(actual_grad, expected_grad, rtol=1e-4, atol=1e-4 * expected_grad.abs().max().item())

    _, head = kernel_attention(q[:, :8], k[:, :8], v[:, :8], kernel, scale=0.5, return_state=True, backend=backend)
    tail = kernel_attention(q[:, 8:], k[:, 8:], v[:, 8:], kernel, scale=0.5, state=head, backend=backend)
    torch.testing.assert_close(tail, expected[:, 8:])
    last, _ = kernel_attention_step(q[:, 8], k[:, 8], v[:, 8], head, kernel, scale=0.5)
    torch.testing.assert_close(last, expected[:, 8])


class Asymmetric(Kernel):
    """exp of queries against squares of keys: what only a subclass of Kernel can say."""

    name = "asymmetric"
    nonnegative = True

    def default_scale(self, feature_dim: int) -> float:
        return 1.0

    def num_features(self, feature_dim: int) -> int:
        return feature_dim

    def query_features(self, q: Tensor, positions: Tensor | None = None, *, scale: float | None = None) -> Tensor:
        return self._scaled(q, scale).exp()

    def key_features(self, k: Tensor, positions: Tensor | None = None) -> Tensor:
        return k.square()


@pytest.mark.parametrize("backend", BACKENDS)
def test_own_kernel_with_two_different_sides(backend: str) -> None:
    q, k, v = randn(1, 5, 2, 3), randn(1, 5, 2, 3, seed=1), randn(1, 5, 2, 4, seed=2)
    weights = torch.einsum("bthe,bshe->bhts", q.exp(), k.square()).tril()
    expected = torch.einsum("bhts,bshd->bthd", weights / weights.sum(-1, keepdim=True), v)
    state = initial_state(Asymmetric(), 1, 2, 3, 4, dtype=torch.float64)
    out = kernel_attention(q, k, v, Asymmetric(), state=state, backend=backend)
    torch.testing.assert_close(out, expected)
