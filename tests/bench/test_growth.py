"""The fitted exponent on data whose law is known."""

import math

import pytest

from rebased.bench.growth import growth_exponent

LENGTHS = [512, 1024, 2048, 8192]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_power_law_is_recovered(exponent: float) -> None:
    assert growth_exponent(LENGTHS, [3e-7 * length**exponent for length in LENGTHS]) == pytest.approx(exponent)


def test_least_squares_by_hand() -> None:
    """Log points (0, 0), (1, 1), (2, 1): slope 1/2."""
    e = math.e
    lengths = [1000, 2000, 4000]
    costs = [1.0, 2.0, 2.0]
    assert growth_exponent(lengths, costs) == pytest.approx(0.5)
    assert growth_exponent(lengths, [cost * e for cost in costs]) == pytest.approx(0.5)


@pytest.mark.parametrize("lengths", [[], [512], [512, 512]], ids=["none", "one", "same"])
def test_too_few_lengths(lengths: list[int]) -> None:
    assert growth_exponent(lengths, [1.0] * len(lengths)) is None


@pytest.mark.parametrize(
    ("lengths", "costs", "message"),
    [([1, 2], [1.0], "must match"), ([1, 2], [1.0, 0.0], "positive"), ([0, 2], [1.0, 1.0], "positive")],
    ids=["mismatch", "zero-cost", "zero-length"],
)
def test_bad_input(lengths: list[int], costs: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        growth_exponent(lengths, costs)
