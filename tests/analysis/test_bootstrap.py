"""Bootstrap intervals: equal to scipy's where it has them, invariant as they should be, and covering."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rebased.analysis.bootstrap import mean_interval

SAMPLES = st.builds(
    lambda seed, n: np.random.default_rng(seed).integers(0, 2**20, size=n) / 2**20,
    st.integers(0, 999),
    st.integers(5, 12),
)
"""5 to 12 values without ties but between orders of the same values, whose sums are exact in binary.

scipy leaves other ties to rounding, so that its BCa and ours would rightly differ; of fewer, all resamples are taken.
"""


@settings(max_examples=30)
@given(values=SAMPLES, confidence=st.sampled_from([0.8, 0.95]), seed=st.integers(0, 99))
def test_mean_is_scipys(values: np.ndarray, confidence: float, seed: int) -> None:
    """With the same generator: it draws the same resamples, so the intervals are equal but for rounding."""
    expected = stats.bootstrap(
        (values,),
        np.mean,
        vectorized=True,
        n_resamples=500,
        method="BCa",
        confidence_level=confidence,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    result = mean_interval(values, confidence=confidence, num_resamples=500, seed=seed)
    assert (result.low, result.high) == pytest.approx(tuple(expected), abs=1e-9)
    assert result.estimate == pytest.approx(values.mean())
    assert (result.method, result.confidence) == ("bca", confidence)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 999), num_values=st.integers(2, 5))
def test_few_values_have_all_resamples_taken(seed: int, num_values: int) -> None:
    """What scipy draws comes near that, the more it draws."""
    values = np.random.default_rng(seed).integers(0, 2**20, size=num_values) / 2**20
    result = mean_interval(values)
    assert mean_interval(values, seed=1) == result
    drawn = stats.bootstrap(
        (values,), np.mean, n_resamples=100_000, method="BCa", rng=np.random.default_rng(seed)
    ).confidence_interval
    means = np.unique([np.mean(each) for each in product(values, repeat=num_values)])
    for ours, theirs in ((result.low, drawn.low), (result.high, drawn.high)):
        # A quantile of few different means is one of them or its neighbour.
        assert abs(np.searchsorted(means, ours) - np.searchsorted(means, theirs)) <= max(2, 0.02 * len(means))


@given(
    values=st.lists(st.integers(0, 9), min_size=3, max_size=12).map(lambda values: np.array(values) / 10),
    scale=st.sampled_from([0.1, 3.0]),
    shift=st.integers(-2, 2),
)
def test_moves_and_stretches_with_the_values(values: np.ndarray, scale: float, shift: int) -> None:
    before = mean_interval(values, num_resamples=200)
    after = mean_interval(scale * values + shift, num_resamples=200)
    assert (after.low, after.high) == pytest.approx((scale * before.low + shift, scale * before.high + shift), abs=1e-6)
    assert before.low <= before.high


def test_equal_values_have_no_width() -> None:
    result = mean_interval(np.full(5, 0.1))
    assert result.low == result.estimate == result.high


def test_seeded_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).normal(size=7)
    whole = mean_interval(values, num_resamples=1000)
    assert mean_interval(values, num_resamples=1000) == whole != mean_interval(values, num_resamples=1000, seed=1)
    monkeypatch.setattr("rebased.analysis.bootstrap._DRAWS", 50)
    assert mean_interval(values, num_resamples=1000) == whole


def test_a_single_resample_is_survived() -> None:
    result = mean_interval(np.array([0.1, 0.2, 0.6]), num_resamples=1)
    assert result.low == result.high


@pytest.mark.parametrize(("num_values", "least", "most"), [(40, 0.92, 0.98), (5, 0.77, 0.87)])
def test_coverage(num_values: int, least: float, most: float) -> None:
    """Near 0.95 with many values and well below with five, as the docstring says."""
    generator = np.random.default_rng(4)
    covered = 0
    for seed in range(500):
        result = mean_interval(generator.normal(size=num_values), num_resamples=400, seed=seed)
        covered += result.low <= 0 <= result.high
    assert least < covered / 500 < most


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": np.array([0.1])}, r"values has shape \(1,\)"),
        ({"values": np.array([0.1, np.inf, 0.2])}, "values has 1 values that are not finite, such as inf"),
        ({"confidence": 95}, "confidence=95"),
        ({"num_resamples": 0}, "num_resamples=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mean_interval(**{"values": np.array([0.1, 0.2, 0.4]), **arguments})
