"""The sign-flip test: against scipy and enumeration, its invariances, and that p is what it says it is."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rebased.analysis.sign_flip import MAX_EXACT_BLOCKS, sign_flip_test

DIFFERENCES = st.lists(st.integers(-40, 40), min_size=1, max_size=8).map(lambda values: np.array(values) / 1000)
"""Multiples of 1/1000 that are often equal or zero: ties that rounding would break."""


@settings(max_examples=30)
@given(differences=DIFFERENCES.filter(lambda values: len(values) > 1))
def test_is_scipys_paired_permutation_test(differences: np.ndarray) -> None:
    a = np.linspace(0.3, 0.7, len(differences))
    expected = stats.permutation_test(
        (a + differences, a),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    result = sign_flip_test(a + differences - a)
    assert result.p_value == pytest.approx(expected.pvalue, rel=1e-12)
    assert result.mean_difference == pytest.approx(expected.statistic, abs=1e-12)
    assert result.exact


@given(data=st.data(), differences=DIFFERENCES)
def test_is_the_enumeration_over_blocks(data: st.DataObject, differences: np.ndarray) -> None:
    blocks = data.draw(st.lists(st.sampled_from("abcd"), min_size=len(differences), max_size=len(differences)))
    thousandths = np.rint(differences * 1000).astype(int)  # exact
    labels = sorted(set(blocks))
    flips = [dict(zip(labels, signs, strict=True)) for signs in product([-1, 1], repeat=len(labels))]
    means = [abs(sum(flip[b] * d for b, d in zip(blocks, thousandths, strict=True))) for flip in flips]
    expected = np.mean(np.array(means) >= abs(thousandths.sum()))
    result = sign_flip_test(differences, blocks)
    assert result.p_value == pytest.approx(expected, rel=1e-12)
    assert result.num_flips == 2**result.num_blocks <= len(flips)


@pytest.mark.parametrize("n", [2, 9, 16, 20, MAX_EXACT_BLOCKS])
def test_differences_of_one_sign_have_the_smallest_p(n: int) -> None:
    """Only the data and their mirror image are as far: by hand 2/2^n, also where all flips could not be listed."""
    result = sign_flip_test(np.linspace(0.1, 0.2, n))
    assert result.p_value == result.smallest_p == 2 / 2**n
    assert (result.num_flips, result.exact) == (2**n, True)


def test_by_hand() -> None:
    """The sum is 4; of the 8 signed sums ±6, ±4, ±2 and ±0, four are as far from zero."""
    assert sign_flip_test(np.array([-1.0, 2.0, 3.0])).p_value == 0.5
    assert sign_flip_test(np.array([-1.0, 2.0, 3.0]), ["x", "x", "y"]).p_value == 0.5  # ±1 ±3: ±4 of four


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0, 0.0], [0.3, -0.3]], ids=["a zero", "zeros", "cancelling"])
def test_no_difference_at_all(values: list[float]) -> None:
    assert sign_flip_test(np.array(values)).p_value == 1
    assert sign_flip_test(np.array(values), [0] * len(values)).p_value == 1
    assert sign_flip_test(np.array(values), max_exact_blocks=0, num_flips=50).p_value == 1


@given(differences=DIFFERENCES, seed=st.integers(0, 5), scale=st.sampled_from([-1.0, 0.37, 1e-6, 1e9]))
def test_sign_scale_order_and_zeros_do_not_matter(differences: np.ndarray, seed: int, scale: float) -> None:
    result = sign_flip_test(differences)
    shuffled = np.random.default_rng(seed).permutation(differences)
    assert sign_flip_test(scale * shuffled).p_value == pytest.approx(result.p_value, rel=1e-12)
    with_zeros = sign_flip_test(np.append(differences, [0.0, 0.0]))
    assert (with_zeros.p_value, with_zeros.num_flips) == (result.p_value, result.num_flips)
    assert sign_flip_test(differences, range(len(differences))) == result


def test_what_rounding_leaves_of_zero_is_no_block() -> None:
    """0.1 + 0.2 - 0.3 is 5.6e-17: six such blocks had a p of 0.03."""
    found = sign_flip_test(np.array([0.1, 0.2, -0.3] * 6), [block for block in range(6) for _ in range(3)])
    assert (found.num_blocks, found.p_value) == (0, 1.0)


def test_drawn_flips_agree_with_all_flips() -> None:
    differences = np.random.default_rng(2).normal(0.4, 1, size=14)
    exact = sign_flip_test(differences)
    drawn = [sign_flip_test(differences, max_exact_blocks=13, num_flips=20_000, seed=seed) for seed in range(5)]
    assert exact.exact
    assert 0.05 < exact.p_value < 0.3
    error = np.sqrt(exact.p_value * (1 - exact.p_value) / 20_000)
    for result in drawn:
        assert (result.exact, result.num_flips) == (False, 20_000)
        assert abs(result.p_value - exact.p_value) < 4 * error
    assert len({result.p_value for result in drawn}) > 1
    assert sign_flip_test(differences, max_exact_blocks=0, seed=7) == sign_flip_test(
        differences, max_exact_blocks=0, seed=7
    )


def test_drawn_flips_never_give_zero() -> None:
    result = sign_flip_test(np.linspace(1, 2, MAX_EXACT_BLOCKS + 1), num_flips=999)
    assert result.p_value == result.smallest_p == 1 / 1000


# ---- Calibration: under the null hypothesis, p ≤ α happens with probability at most α ----


def rejections(draw, blocks=None, *, repeats: int = 1500, alpha: float = 0.05, **options) -> float:
    generator = np.random.default_rng(11)
    return np.mean([sign_flip_test(draw(generator), blocks, **options).p_value <= alpha for _ in range(repeats)])


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda rng: rng.normal(size=10), id="normal"),
        pytest.param(lambda rng: rng.standard_cauchy(10), id="heavy tails"),
        pytest.param(lambda rng: rng.normal(size=10) * np.geomspace(0.01, 1, 10), id="sizes that vary unequally"),
    ],
)
def test_rejects_at_its_level(draw) -> None:
    assert 0.03 < rejections(draw) < 0.065  # three standard deviations of 1500 repeats around 51/1024


def test_drawn_flips_reject_at_their_level() -> None:
    assert 0.03 < rejections(lambda rng: rng.normal(size=10), max_exact_blocks=0, num_flips=199) < 0.067


def test_sizes_that_share_a_seeds_luck_must_flip_together() -> None:
    """Differences that are dependent within a seed look like more evidence than they are, unless a seed is a block."""

    def draw(generator: np.random.Generator) -> np.ndarray:
        return (generator.normal(size=(8, 1)) + 0.3 * generator.normal(size=(8, 4))).ravel()

    seeds = np.repeat(np.arange(8), 4).tolist()
    assert 0.03 < rejections(draw, seeds) < 0.065
    assert rejections(draw, repeats=100) > 0.2


def test_holds_where_each_kernel_has_its_best_learning_rate() -> None:
    """Table 1 takes the best of the learning rates per size: two equal kernels must not differ for that."""

    def best(generator: np.random.Generator) -> np.ndarray:
        rates = generator.normal(size=(4, 2, 5)) * np.array([[0.5], [2.0]])  # (sizes, rates, seeds)
        return rates[np.arange(4), rates.mean(2).argmax(1)]

    assert rejections(lambda generator: (best(generator) - best(generator)).ravel(), repeats=600) < 0.07


def test_finds_a_difference() -> None:
    assert rejections(lambda generator: generator.normal(1, 1, size=20), repeats=200) > 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"differences": np.array([])}, r"differences has shape \(0,\)"),
        ({"differences": np.zeros((2, 2))}, r"differences has shape \(2, 2\)"),
        ({"differences": np.array([0.1, np.nan])}, "differences has 1 values that are not finite"),
        ({"blocks": ["a"]}, "blocks has 1 labels for 2 values"),
        ({"num_flips": 0}, "num_flips=0"),
        ({"seed": -1}, "seed=-1"),
        ({"max_exact_blocks": 33}, "max_exact_blocks=33 must be from 0 to 32"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sign_flip_test(**{"differences": np.array([0.1, 0.2]), **arguments})


def test_a_seed_must_be_given() -> None:
    """None would draw differently each time."""
    with pytest.raises(TypeError, match="seed is None"):
        sign_flip_test(np.array([0.1, 0.2]), seed=None)
