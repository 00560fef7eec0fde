"""Bootstrap intervals: equal to scipy's where it has them, invariant as they should be, and covering."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rebased.analysis.bootstrap import METHODS, mean_difference_interval, mean_interval


def samples(first_seed: int) -> st.SearchStrategy[np.ndarray]:
    """5 to 12 values without ties but between orders of the same values, whose sums are exact in binary.

    scipy leaves other ties to rounding, so that its BCa and ours would rightly differ; of fewer, all resamples are
    taken.
    """
    seeds, sizes = st.integers(first_seed, first_seed + 999), st.integers(5, 12)
    return st.builds(lambda seed, n: np.random.default_rng(seed).integers(0, 2**20, size=n) / 2**20, seeds, sizes)


SAMPLES, OTHER_SAMPLES = samples(0), samples(1000)
SCIPY_NAMES = {"bca": "BCa", "percentile": "percentile"}


def scipy_interval(samples, statistic, *, method: str, confidence: float, seed: int) -> tuple[float, float]:
    """With the same generator: it draws the same resamples, so the intervals are equal but for rounding."""
    return stats.bootstrap(
        samples,
        statistic,
        vectorized=True,
        n_resamples=500,
        method=SCIPY_NAMES[method],
        confidence_level=confidence,
        rng=np.random.default_rng(seed),
    ).confidence_interval


@settings(max_examples=30)
@given(
    values=SAMPLES, method=st.sampled_from(METHODS), confidence=st.sampled_from([0.8, 0.95]), seed=st.integers(0, 99)
)
def test_mean_is_scipys(values: np.ndarray, method: str, confidence: float, seed: int) -> None:
    expected = scipy_interval((values,), np.mean, method=method, confidence=confidence, seed=seed)
    result = mean_interval(values, method=method, confidence=confidence, num_resamples=500, seed=seed)
    assert (result.low, result.high) == pytest.approx(tuple(expected), abs=1e-9)
    assert result.estimate == pytest.approx(values.mean())
    assert (result.method, result.confidence) == (method, confidence)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), num_values=st.integers(2, 5), method=st.sampled_from(METHODS))
def test_few_values_have_all_resamples_taken(seed: int, num_values: int, method: str) -> None:
    """What scipy draws comes near that, the more it draws."""
    values = np.random.default_rng(seed).integers(0, 2**20, size=num_values) / 2**20
    result = mean_interval(values, method=method)
    assert mean_interval(values, method=method, seed=1) == result
    drawn = stats.bootstrap(
        (values,), np.mean, n_resamples=100_000, method=SCIPY_NAMES[method], rng=np.random.default_rng(seed)
    ).confidence_interval
    means = np.unique([np.mean(each) for each in product(values, repeat=num_values)])
    for ours, theirs in ((result.low, drawn.low), (result.high, drawn.high)):
        # A quantile of few different means is one of them or its neighbour.
        assert abs(np.searchsorted(means, ours) - np.searchsorted(means, theirs)) <= max(2, 0.02 * len(means))
    if method == "percentile":
        every = [np.mean(each) for each in product(values, repeat=num_values)]
        assert (result.low, result.high) == pytest.approx(tuple(np.quantile(every, [0.025, 0.975])), abs=1e-12)


def mean_difference(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
    return a.mean(axis=axis) - b.mean(axis=axis)


@settings(max_examples=30)
@given(a=SAMPLES, b=OTHER_SAMPLES, method=st.sampled_from(METHODS), seed=st.integers(0, 99))
def test_difference_of_means_is_scipys(a: np.ndarray, b: np.ndarray, method: str, seed: int) -> None:
    expected = scipy_interval((a, b), mean_difference, method=method, confidence=0.9, seed=seed)
    result = mean_difference_interval(a, b, method=method, confidence=0.9, num_resamples=500, seed=seed)
    assert (result.low, result.high) == pytest.approx(tuple(expected), abs=1e-9)


@settings(max_examples=20)
@given(a=SAMPLES, b=OTHER_SAMPLES, method=st.sampled_from(METHODS), seed=st.integers(0, 99))
def test_stratified_mean_is_scipys_of_a_weighted_sum(a: np.ndarray, b: np.ndarray, method: str, seed: int) -> None:
    share = len(a) / (len(a) + len(b))

    def overall(a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return share * a.mean(axis=axis) + (1 - share) * b.mean(axis=axis)

    expected = scipy_interval((a, b), overall, method=method, confidence=0.95, seed=seed)
    values, strata = np.concatenate([a, b]), ["a"] * len(a) + ["b"] * len(b)
    result = mean_interval(values, strata, method=method, num_resamples=500, seed=seed)
    assert (result.low, result.high) == pytest.approx(tuple(expected), abs=1e-9)
    assert result.estimate == pytest.approx(values.mean())


@given(
    values=st.lists(st.integers(0, 9), min_size=3, max_size=12).map(lambda values: np.array(values) / 10),
    method=st.sampled_from(METHODS),
    scale=st.sampled_from([0.1, 3.0]),
    shift=st.integers(-2, 2),
)
def test_moves_and_stretches_with_the_values(values: np.ndarray, method: str, scale: float, shift: int) -> None:
    before = mean_interval(values, method=method, num_resamples=200)
    after = mean_interval(scale * values + shift, method=method, num_resamples=200)
    assert (after.low, after.high) == pytest.approx((scale * before.low + shift, scale * before.high + shift), abs=1e-6)
    assert before.low <= before.high


@pytest.mark.parametrize("method", METHODS)
def test_swapping_the_sides_mirrors_the_interval(method: str) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=9), generator.exponential(size=9)
    one, other = (mean_difference_interval(*sides, method=method, seed=1) for sides in [(a, b), (b, a)])
    assert one.estimate == -other.estimate
    assert (one.low, one.high) == pytest.approx(
        (-other.high, -other.low), abs=0.1
    )  # a tenth of the width: other resamples


def test_differences_between_strata_add_no_width() -> None:
    values = np.array([0.10, 0.12, 0.11, 0.90, 0.92, 0.91])
    stratified = mean_interval(values, [16, 16, 16, 48, 48, 48])
    pooled = mean_interval(values)
    assert stratified.high - stratified.low < 0.02 < 0.5 < pooled.high - pooled.low
    assert mean_interval(values, [0] * 6) == pooled


def test_stratified_difference_of_means() -> None:
    a, b = np.array([0.10, 0.12, 0.90, 0.94]), np.array([0.20, 0.22, 0.80, 0.82, 0.84])
    result = mean_difference_interval(a, b, [16, 16, 48, 48], [16, 16, 48, 48, 48])
    assert result.estimate == pytest.approx(a.mean() - b.mean())
    assert result.low <= result.estimate <= result.high
    assert result.high - result.low < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_equal_values_have_no_width(method: str) -> None:
    result = mean_interval(np.full(5, 0.1), method=method)
    assert result.low == result.estimate == result.high
    result = mean_interval(np.array([0.1, 0.1, 0.7, 0.7]), [1, 1, 2, 2], method=method)
    assert result.low == result.estimate == result.high == pytest.approx(0.4)


def test_seeded_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).normal(size=7)
    whole = mean_interval(values, num_resamples=1000)
    assert mean_interval(values, num_resamples=1000) == whole != mean_interval(values, num_resamples=1000, seed=1)
    monkeypatch.setattr("rebased.analysis.bootstrap._DRAWS", 50)
    assert mean_interval(values, num_resamples=1000) == whole


def test_a_single_resample_is_survived() -> None:
    result = mean_interval(np.array([0.1, 0.2, 0.6]), num_resamples=1)
    assert result.low == result.high


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("num_strata", "num_values", "least"),
    [pytest.param(1, 40, 0.92, id="forty values"), pytest.param(4, 5, 0.86, id="five seeds of four sizes")],
)
def test_coverage(method: str, num_strata: int, num_values: int, least: float) -> None:
    """Near 0.95 with many values and somewhat below with five in a stratum, as the docstring says."""
    generator = np.random.default_rng(4)
    strata = np.repeat(np.arange(num_strata), num_values)
    covered = 0
    for seed in range(500):
        values = strata + generator.normal(size=len(strata))
        result = mean_interval(values, strata.tolist(), method=method, num_resamples=400, seed=seed)
        covered += result.low <= strata.mean() <= result.high
    assert least < covered / 500 < 0.98


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": np.array([0.1])}, r"values has shape \(1,\)"),
        ({"values": np.array([0.1, np.inf, 0.2])}, "values has 1 values that are not finite, such as inf"),
        ({"strata": ["a", "a"]}, "strata has 2 labels for 3 values"),
        ({"strata": ["a", "b", "a"]}, "strata has 'b' once"),
        ({"confidence": 95}, "confidence=95"),
        ({"method": "basic"}, "method='basic' is unknown; it may be 'bca' or 'percentile'"),
        ({"num_resamples": 0}, "num_resamples=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_interval(**{"values": np.array([0.1, 0.2, 0.4]), **arguments})


def test_bad_input_of_the_difference() -> None:
    with pytest.raises(ValueError, match=r"b has shape \(1,\)"):
        mean_difference_interval(np.zeros(2), np.zeros(1))
    with pytest.raises(ValueError, match="strata_b has 1 once"):
        mean_difference_interval(np.zeros(2), np.zeros(3), None, [0, 0, 1])
