"""The test that chooses learning rates in every flip: against brute force, where it must be another test, its level."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebased.analysis.held_out import held_out
from rebased.analysis.rate_flip import flip_interval, rate_flip_test
from rebased.analysis.sign_flip import sign_flip_test


def tables(generator: np.random.Generator, seeds: list[int], num_rates: int, *, sd: float = 0.1) -> list[np.ndarray]:
    """In steps of 1/256, whose sums are exact: ties are ties."""
    return [np.round(generator.normal(0.5, sd, (num, num_rates)) * 256) / 256 for num in seeds]


def chosen_by_hand(table: np.ndarray) -> list[float]:
    found = []
    for seed in range(len(table)):
        others = [row for other, row in enumerate(table.tolist()) if other != seed] or [table[seed].tolist()]
        means = [sum(column) / len(others) for column in zip(*others, strict=True)]
        found.append(float(table[seed][means.index(max(means))]))
    return found


@given(seed=st.integers(0, 10_000), num_seeds=st.integers(1, 5), num_rates=st.integers(1, 4))
def test_a_rate_is_chosen_by_the_other_seeds(seed: int, num_seeds: int, num_rates: int) -> None:
    (table,) = tables(np.random.default_rng(seed), [num_seeds], num_rates)
    assert held_out(table).tolist() == chosen_by_hand(table)
    stacked = np.stack([table, table[::-1]])
    assert held_out(stacked).tolist() == [chosen_by_hand(each) for each in stacked]


def test_a_choice_by_hand() -> None:
    """For seed 0 the others say 0.1 or 0.45; for seeds 1 and 2 they say 0.5 or 0.45, and 0.5 or 0.5: the first."""
    assert held_out(np.array([[0.9, 0.5], [0.1, 0.5], [0.1, 0.4]])).tolist() == [0.5, 0.1, 0.1]


@given(own=st.integers(0, 96_000), num_seeds=st.integers(2, 6))
def test_of_equally_good_rates_the_first_is_taken(own: int, num_seeds: int) -> None:
    """The others have 0.99 at both; sums of which one's own is taken away differ by rounding."""
    table = np.full((num_seeds, 2), 0.99)
    table[-1, 0] = own / 96_000
    assert held_out(table)[-1] == table[-1, 0]


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    seeds=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    num_rates=st.integers(2, 3),
    num_labels=st.none() | st.integers(1, 6),
)
def test_p_is_the_share_of_all_flips(seed: int, seeds: list[int], num_rates: int, num_labels: int | None) -> None:
    generator = np.random.default_rng(seed)
    a, b = tables(generator, seeds, num_rates), tables(generator, seeds, num_rates, sd=0.2)
    blocks = None if num_labels is None else generator.integers(0, num_labels, sum(seeds)).tolist()
    labels = blocks or list(range(sum(seeds)))

    def difference(flips: tuple[bool, ...]) -> float:
        total, row = 0.0, 0
        for x, y in zip(a, b, strict=True):
            flipped = np.array(flips[row : row + len(x)])[:, None]
            row += len(x)
            pairs = zip(chosen_by_hand(np.where(flipped, y, x)), chosen_by_hand(np.where(flipped, x, y)), strict=True)
            total += sum(mine - theirs for mine, theirs in pairs)
        return total / row

    used = sorted(set(labels))
    every = [
        difference(tuple(flips[used.index(label)] for label in labels))
        for flips in product((False, True), repeat=len(used))
    ]
    found = rate_flip_test(a, b, blocks)
    assert found.mean_difference == pytest.approx(every[0], abs=1e-12)
    assert found.p_value == pytest.approx(np.mean([abs(x) >= abs(every[0]) - 1e-9 for x in every]))
    assert found.exact


@given(seed=st.integers(0, 10_000))
def test_flips_that_tie_but_for_rounding_are_as_far(seed: int) -> None:
    """Tenths, whose sums are not exact, as their numerators."""
    generator = np.random.default_rng(seed)
    a, b = ([generator.integers(0, 4, (3, 2)) for _ in range(2)] for _ in "ab")
    tenths = rate_flip_test([x / 10 for x in a], [y / 10 for y in b])
    assert tenths.p_value == rate_flip_test(a, b).p_value


@given(seed=st.integers(0, 10_000))
def test_with_one_rate_it_is_the_sign_flip_test(seed: int) -> None:
    generator = np.random.default_rng(seed)
    a, b = tables(generator, [5, 3], 1), tables(generator, [5, 3], 1)
    differences, blocks = np.concatenate([x - y for x, y in zip(a, b, strict=True)])[:, 0], [1, 2, 3, 4, 5, 1, 2, 3]
    assert rate_flip_test(a, b) == sign_flip_test(differences)
    assert rate_flip_test(a, b, blocks) == sign_flip_test(differences, blocks)


def test_blocks_flip_together() -> None:
    generator = np.random.default_rng(0)
    a, b = tables(generator, [4] * 3, 2), [table - 0.5 for table in tables(generator, [4] * 3, 2)]
    found = rate_flip_test(a, b, [0, 1, 2, 3] * 3)
    assert (found.num_blocks, found.num_flips, found.p_value) == (4, 16, 2 / 16)


def test_runs_that_are_the_same_change_nothing() -> None:
    generator = np.random.default_rng(0)
    a, b = tables(generator, [4, 3], 2), tables(generator, [4, 3], 2)
    b[1] = a[1]
    found = rate_flip_test(a, b)
    assert found.num_blocks == 4
    assert found.p_value == rate_flip_test(a[:1], b[:1]).p_value
    assert rate_flip_test(a, a).p_value == 1


def test_flips_drawn_are_near_all_of_them() -> None:
    generator = np.random.default_rng(1)
    a, b = tables(generator, [5, 5], 3), tables(generator, [5, 5], 3)
    every, drawn = rate_flip_test(a, b), rate_flip_test(a, b, max_exact_blocks=0, num_flips=5000, seed=3)
    assert (every.exact, every.num_flips, drawn.exact, drawn.num_flips) == (True, 1024, False, 5000)
    assert drawn.p_value == pytest.approx(every.p_value, abs=0.025)  # 3.5 standard deviations
    assert drawn == rate_flip_test(a, b, max_exact_blocks=0, num_flips=5000, seed=3)


def test_of_flips_that_are_drawn_the_data_is_one() -> None:
    """So p is never 0: of 30 runs far apart no flip that is drawn is as far."""
    generator = np.random.default_rng(1)
    a = tables(generator, [10] * 3, 2)
    found = rate_flip_test(a, [table - 2 for table in a], max_exact_blocks=0, num_flips=99)
    assert found.p_value == found.smallest_p == 1 / 100


def test_many_seeds_of_a_size_are_drawn() -> None:
    generator = np.random.default_rng(1)
    a, b = tables(generator, [20], 2), tables(generator, [20], 2)
    assert not rate_flip_test(a, b).exact
    assert rate_flip_test([*a, *a], [*b, *b], num_flips=10).num_blocks == 40


@pytest.mark.parametrize(("num_rates", "other_sd"), [(2, 0.1), (4, 0.1), (4, 0.025)])
def test_keeps_its_level(num_rates: int, other_sd: float) -> None:
    """Equal means, four sizes of five seeds: p < 0.05 in 5 %, where a test of chosen accuracies has 12 to 16 %."""
    generator, num_tables = np.random.default_rng(0), 600
    refused, refused_naively = 0, 0
    for _ in range(num_tables):
        a, b = tables(generator, [5] * 4, num_rates), tables(generator, [5] * 4, num_rates, sd=other_sd)
        refused += rate_flip_test(a, b).p_value < 0.05
        naive = np.concatenate([held_out(x) - held_out(y) for x, y in zip(a, b, strict=True)])
        refused_naively += sign_flip_test(naive).p_value < 0.05
    assert refused / num_tables < 0.08  # 0.05, and three standard deviations
    assert refused_naively / num_tables > 0.08


def test_the_interval_is_what_the_test_does_not_refuse() -> None:
    generator = np.random.default_rng(2)
    a, b = tables(generator, [5] * 4, 3), tables(generator, [5] * 4, 3)
    found = flip_interval(a, b)
    assert found is not None
    low, high = found.low, found.high
    assert low < rate_flip_test(a, b).mean_difference < high
    for shift, is_refused in ((low - 1e-3, True), (low + 1e-3, False), (high - 1e-3, False), (high + 1e-3, True)):
        p = rate_flip_test(a, [table + shift for table in b]).p_value
        assert (p < 0.05) == is_refused
    moved = flip_interval([table + 0.25 for table in a], b)
    assert moved is not None
    assert (moved.low, moved.high) == pytest.approx((low + 0.25, high + 0.25), abs=1e-4)


def test_the_interval_ends_where_the_test_does_however_far_that_is() -> None:
    """Of few runs that learn all or nothing, an end may be at more than twice the range of all accuracies."""
    generator = np.random.default_rng(1400)
    a, b = ([np.round(generator.beta(0.3, 0.3, (3, 2)) * 256) / 256 for _ in range(2)] for _ in "ab")
    found = flip_interval(a, b)
    assert found is not None
    assert found.estimate - found.low > 2
    for shift, is_refused in ((found.low - 1e-3, True), (found.low + 1e-3, False)):
        assert (rate_flip_test(a, [table + shift for table in b]).p_value < 0.05) == is_refused


def test_the_interval_holds_no_difference_where_the_test_does_not_refuse_it() -> None:
    """Runs that tie, because they stop at one accuracy, tie at no other shift: these were refused."""
    capped = np.full((5, 2), 0.99)
    a, b = [capped.copy() for _ in range(4)], [capped.copy() for _ in range(4)]
    for size, gain in ((0, 0.3), (1, 0.2), (2, 0.4)):
        b[size][0] -= gain
    found = flip_interval(a, b)
    assert found is not None
    assert rate_flip_test(a, b).p_value == 0.25
    assert found.low <= 0 < found.high


def test_few_runs_have_no_interval() -> None:
    generator = np.random.default_rng(2)
    assert flip_interval(tables(generator, [5], 2), tables(generator, [5], 2)) is None


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([np.zeros((2, 2))], [np.zeros((3, 2))], "both must have the same seeds"),
        ([np.zeros(2)], [np.zeros(2)], "both must have the same seeds"),
        ([np.full((1, 2), np.nan)], [np.zeros((1, 2))], "a has 2 values that are not finite"),
        ([], [], "no sizes"),
    ],
)
def test_bad_input(a: list[np.ndarray], b: list[np.ndarray], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rate_flip_test(a, b)
