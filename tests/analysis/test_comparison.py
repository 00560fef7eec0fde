"""Comparisons of kernels: that the parts are put together rightly, and that "better" is said only where it may be."""

from itertools import product

import numpy as np
import pytest

from rebased.analysis.comparison import compare_kernels
from rebased.analysis.effect import cliffs_delta, hedges_gz
from rebased.analysis.held_out import held_out
from rebased.analysis.holm import holm
from rebased.analysis.rate_flip import flip_interval, rate_flip_test
from rebased.analysis.sign_flip import sign_flip_test

SIZES, SEEDS = (16, 24, 32, 48), (42, 43, 44, 45, 46)


def table(means: dict[str, float], *, noise: float = 0.05, seed: int = 0) -> dict[tuple[str, int, int], float]:
    generator = np.random.default_rng(seed)
    return {
        (kernel, size, run): mean + size / 100 + noise * generator.normal()
        for (kernel, mean), size, run in product(means.items(), SIZES, SEEDS)
    }


def test_puts_the_parts_together() -> None:
    accuracies = table({"based": 0.1, "rebased": 0.2, "x2": 0.11})
    comparisons = compare_kernels(accuracies)
    assert [(one.a, one.b) for one in comparisons] == [("based", "rebased"), ("based", "x2"), ("rebased", "x2")]
    np.testing.assert_array_equal(
        [one.adjusted_p for one in comparisons], holm(np.array([one.p_value for one in comparisons]))
    )
    for one in comparisons:
        a, b = (
            np.array([[accuracies[kernel, size, run] for run in SEEDS] for size in SIZES]) for kernel in (one.a, one.b)
        )
        assert one.test == sign_flip_test((a - b).ravel())
        assert one.interval == flip_interval(list(a[:, :, None]), list(b[:, :, None]))
        assert one.effect == hedges_gz((a - b).ravel())
        assert one.cliffs_delta == pytest.approx(np.mean([cliffs_delta(a[i], b[i]) for i in range(4)]))
        assert (one.mean_a, one.mean_b) == pytest.approx((a.mean(), b.mean()))
        assert one.difference == pytest.approx(one.mean_a - one.mean_b)
        assert (one.num_runs, one.num_left_out) == (20, 0)


def test_verdicts() -> None:
    verdicts = [one.verdict for one in compare_kernels(table({"based": 0.1, "rebased": 0.2, "x2": 0.1}, seed=1))]
    assert verdicts == ["b better", "no difference shown", "a better"]
    swapped = [one.verdict for one in compare_kernels(table({"rebased": 0.2, "based": 0.1}))]
    assert swapped == ["a better"]


def test_better_is_said_only_below_alpha_after_correction() -> None:
    """An effect that a test alone would show is not shown once it is one of 45 (10 kernels)."""
    several = compare_kernels(table({"a": 0.035, "b": 0.0} | {f"same {i}": 0.0 for i in range(8)}, seed=1))
    alone = compare_kernels(table({"a": 0.035, "b": 0.0}, seed=1))
    assert alone[0].p_value == several[0].p_value < 0.05
    assert alone[0].verdict == "a better"
    assert several[0].adjusted_p > 0.05
    assert several[0].verdict == "no difference shown"
    strict = compare_kernels(table({"a": 0.035, "b": 0.0}, seed=1), alpha=alone[0].p_value)
    assert strict[0].verdict == "no difference shown"  # p < alpha, not p ≤ alpha


def test_equal_kernels_are_rarely_told_apart() -> None:
    """Six kernels that are one: some "better" in at most 5 % of tables."""
    kernels = dict.fromkeys(["based", "x2", "norm_x2", "gamma_x2", "gamma_beta_x2", "rebased"], 0.5)
    wrong = [
        any(one.verdict != "no difference shown" for one in compare_kernels(table(kernels, seed=seed), intervals=False))
        for seed in range(100)
    ]
    assert np.mean(wrong) <= 0.1  # two standard deviations above


def test_blocks_that_flip_together() -> None:
    accuracies = table({"a": 0.3, "b": 0.1})
    blocks = {
        together: compare_kernels(accuracies, flip_together=together)[0].test.num_blocks
        for together in ("run", "seed", "size")
    }
    assert blocks == {"run": 20, "seed": 5, "size": 4}
    (by_seed,) = compare_kernels(accuracies, flip_together="seed")
    assert by_seed.p_value == by_seed.test.smallest_p == 2 / 2**5
    assert by_seed.verdict == "no difference shown"  # however large it is


def test_order_of_runs_does_not_matter_and_swapping_kernels_mirrors() -> None:
    accuracies = table({"a": 0.3, "b": 0.27})
    backwards = dict(sorted(accuracies.items(), key=lambda item: (item[0][0], -item[0][1], -item[0][2])))
    assert compare_kernels(backwards) == compare_kernels(accuracies)
    (one,) = compare_kernels(accuracies)
    (other,) = compare_kernels(dict(reversed(accuracies.items())))
    assert (other.a, other.b) == ("b", "a")
    assert other.p_value == one.p_value
    assert (other.difference, other.effect) == (-one.difference, -one.effect)
    assert other.cliffs_delta == pytest.approx(-one.cliffs_delta)


def rates_of(generator: np.random.Generator, num_rates: int) -> dict[float, float]:
    return {1e-3 * (1 + rate): generator.normal(0.5, 0.1) for rate in range(num_rates)}


def test_learning_rates_are_chosen_by_other_seeds() -> None:
    generator = np.random.default_rng(0)
    accuracies = {run: rates_of(generator, 3) for run in product(("based", "rebased"), SIZES, SEEDS)}
    (one,) = compare_kernels(accuracies)
    a, b = (
        [np.array([list(accuracies[kernel, size, run].values()) for run in SEEDS]) for size in SIZES]
        for kernel in ("based", "rebased")
    )
    chosen_a, chosen_b = (np.concatenate([held_out(table) for table in tables]) for tables in (a, b))
    assert one.test == rate_flip_test(a, b)
    assert one.interval == flip_interval(a, b)
    assert (one.mean_a, one.mean_b) == pytest.approx((chosen_a.mean(), chosen_b.mean()))
    assert one.effect == hedges_gz(chosen_a - chosen_b)


def test_the_interval_is_of_the_same_alpha_as_the_verdict() -> None:
    accuracies = table({"a": 0.3, "b": 0.27})
    a, b = ([np.array([[accuracies[kernel, size, run]] for run in SEEDS]) for size in SIZES] for kernel in ("a", "b"))
    (one,) = compare_kernels(accuracies, alpha=0.2)
    assert one.interval == flip_interval(a, b, confidence=0.8)
    assert one.interval != flip_interval(a, b)


def test_only_learning_rates_that_both_have_count() -> None:
    """A rate that lacks a seed is left out, and a seed that then has none."""
    generator = np.random.default_rng(0)
    whole = {run: rates_of(generator, 2) for run in product(("a", "b"), (16, 24), SEEDS)}
    other_rates = {("b", 24, 42): {3e-3: 0.5} | whole["b", 24, 42]}
    assert compare_kernels(whole | other_rates) == compare_kernels(whole)
    without = {
        run: {rate: x for rate, x in rates.items() if (run, rate) != (("a", 16, 43), 2e-3)}
        for run, rates in whole.items()
    }
    one_rate = {run: {1e-3: rates[1e-3]} if run[1] == 16 else rates for run, rates in whole.items()}
    assert compare_kernels(without) == compare_kernels(one_rate)
    assert compare_kernels(without)[0].num_left_out == 0


def test_runs_that_only_one_has_are_left_out() -> None:
    accuracies = table({"a": 0.3, "b": 0.1})
    del accuracies["a", 16, 42], accuracies["b", 48, 46], accuracies["b", 48, 45]
    (one,) = compare_kernels(accuracies)
    assert (one.num_runs, one.num_left_out) == (17, 3)


def test_one_seed_is_too_little_for_an_interval() -> None:
    (one,) = compare_kernels({("a", 16, 42): 0.1, ("b", 16, 42): 0.2})
    assert one.interval is None
    assert one.effect is None
    assert one.p_value == 1
    assert one.verdict == "no difference shown"


def test_equal_accuracies() -> None:
    (one,) = compare_kernels({(kernel, 48, seed): 0.99 for kernel in "ab" for seed in SEEDS})
    assert (one.difference, one.p_value, one.effect, one.cliffs_delta) == (0, 1, 0, 0)
    assert one.interval is None  # five seeds refuse nothing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"accuracies": {("a", 16, 42): 0.1}}, r"accuracies has the kernels \['a'\]"),
        ({"accuracies": {("a", 16, 42): 0.1, ("b", 16, 42): np.nan}}, "accuracies of 'b' has 1 values"),
        ({"alpha": 5}, "alpha=5"),
        ({"flip_together": "all"}, "flip_together='all' is unknown; it may be one of 'run', 'seed', 'size'"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare_kernels(**{"accuracies": table({"a": 0.1, "b": 0.2}), **arguments})


def test_kernels_that_share_no_run_are_left_out() -> None:
    accuracies = {("a", 16, 1): 0.1, ("a", 16, 2): 0.2, ("b", 16, 1): 0.3, ("b", 16, 2): 0.3, ("c", 24, 1): 0.5}
    assert [(each.a, each.b) for each in compare_kernels(accuracies)] == [("a", "b")]
    assert compare_kernels({("a", 16, 1): 0.1, ("b", 24, 1): 0.1}) == ()
