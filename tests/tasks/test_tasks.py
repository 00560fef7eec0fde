"""MQAR and its kin: their structure over generated settings, their distribution against numpy, their bytes."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rebased.tasks import (
    IGNORED,
    TASKS,
    Examples,
    copying,
    count_shared,
    mqar,
    mqar_haystack,
    sampling,
    single_query_recall,
)
from rebased.tasks.philox import philox, random_words

# ---- Random numbers ----


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]) -> None:
    """The published ones of Philox4x32-10."""
    assert tuple(int(x) for x in philox(tuple(torch.tensor([x]) for x in counter), key)) == expected


def test_words_do_not_depend_on_what_else_is_asked_for() -> None:
    examples = torch.tensor([3, 2**40, 5])
    whole = random_words(7, examples, 19, purpose=1)
    assert torch.equal(random_words(7, examples[1:2], 8, purpose=1, start=8), whole[1:2, 8:16])
    assert not torch.equal(random_words(8, examples, 19, purpose=1), whole)
    assert not torch.equal(random_words(7, examples, 19, purpose=2), whole)
    assert not torch.equal(random_words(7 + 2**32, examples, 19, purpose=1), whole)


def test_logarithms_in_fixed_point() -> None:
    words = torch.cat([torch.arange(5), 2**32 - 1 - torch.arange(5), torch.randint(0, 2**32, (1000,))])
    actual = sampling._minus_log2(words[None])[0].double() / 2**28
    torch.testing.assert_close(actual, -torch.log2((words.double() + 0.5) / 2**32), rtol=0, atol=2**-27)


def test_weighted_orders_have_the_right_probabilities() -> None:
    """Each of the six orders of three, one weighted draw after another."""
    weights, num = (1.0, 2.0, 5.0), 200_000
    orders = sampling.weighted_order(0, torch.arange(num), weights, purpose=3)
    statistic = 0.0
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        probability = weights[order[0]] / 8 * weights[order[1]] / (8 - weights[order[0]])
        count = (orders == torch.tensor(order)).all(dim=1).sum().item()
        statistic += (count - num * probability) ** 2 / (num * probability)
    assert statistic < 20.5  # chi-square with 5 degrees of freedom: 1 in 1000


@given(count=st.integers(1, 40), spare=st.integers(0, 40), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=30)
def test_distinct_numbers(count: int, spare: int, seed: int) -> None:
    numbers = sampling.distinct_numbers(seed, torch.arange(20), count, count + spare, purpose=0)
    assert numbers.shape == (20, count)
    assert all(len(set(row)) == count and 0 <= min(row) <= max(row) < count + spare for row in numbers.tolist())


def test_unlucky_rows_draw_again_and_change_no_other() -> None:
    """All of ten numbers: some rows need far more draws than the average."""
    together = sampling.distinct_numbers(0, torch.arange(2000), 10, 10, purpose=0)
    alone = torch.cat([sampling.distinct_numbers(0, torch.tensor([i]), 10, 10, purpose=0) for i in range(200)])
    assert torch.equal(together[:200], alone)


# ---- Structure ----


@st.composite
def mqar_settings(draw: st.DrawFn) -> dict[str, Any]:
    pairs = draw(st.integers(1, 12))
    seq_len = 2 * draw(st.integers(2 * pairs, 2 * pairs + 10))
    return {
        "num_examples": draw(st.integers(1, 5)),
        "seq_len": seq_len,
        "num_pairs": pairs,
        "vocab_size": draw(st.integers(seq_len + 1, seq_len + 60)),
        "power": draw(st.sampled_from([0.01, 0.5, 1.0, 2.0, 3.0])),
        "random_non_queries": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**40)),
    }


def check_recall(examples: Examples, pairs_at: int, num_pairs: int, vocab_size: int) -> None:
    """Distinct keys and values of their halves of the vocabulary; the label at a query is its key's value."""
    half = vocab_size // 2
    assert torch.equal(examples.positions, examples.positions.sort(dim=1).values)
    for inputs, labels, positions in zip(
        examples.inputs.tolist(), examples.labels.tolist(), examples.positions.tolist(), strict=True
    ):
        keys, values = (inputs[pairs_at + i : pairs_at + 2 * num_pairs : 2] for i in (0, 1))
        assert len(set(keys)) == len(set(values)) == num_pairs
        assert 1 <= min(keys) <= max(keys) < half <= min(values) <= max(values) < vocab_size
        value = dict(zip(keys, values, strict=True))
        assert [t for t, label in enumerate(labels) if label != IGNORED] == positions
        assert all(labels[t] == value[inputs[t]] for t in positions)


@given(options=mqar_settings())
@settings(max_examples=40)
def test_mqar(options: dict[str, Any]) -> None:
    examples = mqar(**options)
    pairs, seq_len = options["num_pairs"], options["seq_len"]
    assert examples.inputs.shape == examples.labels.shape == (options["num_examples"], seq_len)
    assert examples.inputs.dtype == examples.labels.dtype == torch.int64
    check_recall(examples, 0, pairs, options["vocab_size"])
    assert ((examples.positions >= 2 * pairs) & (examples.positions % 2 == 0)).all()
    for inputs, positions in zip(examples.inputs, examples.positions, strict=True):
        assert sorted(inputs[positions].tolist()) == sorted(inputs[: 2 * pairs : 2].tolist())  # each key once more
        others = torch.ones(seq_len, dtype=torch.bool)
        others[: 2 * pairs] = others[positions] = False
        assert options["random_non_queries"] or (inputs[others] == 0).all()


def test_mqar_by_numpy() -> None:
    """The gaps' distribution, beside numpy's own weighted choice without replacement."""
    pairs, seq_len, num = 4, 24, 20_000
    num_gaps = (seq_len - 2 * pairs) // 2
    weights = np.arange(1, num_gaps + 1) ** (0.01 - 1)
    probabilities = weights / weights.sum()
    examples = mqar(num, seq_len, pairs, seed=3)
    keys = examples.inputs[:, : 2 * pairs : 2]
    is_query = examples.inputs[:, None, 2 * pairs :: 2] == keys[..., None]  # (N, P, gaps)
    gaps = is_query.int().argmax(dim=2).numpy()
    first = np.bincount(gaps[:, 0], minlength=num_gaps)
    assert ((first - num * probabilities) ** 2 / (num * probabilities)).sum() < 24.4  # 7 degrees: 1 in 1000
    generator = np.random.default_rng(0)
    theirs = np.array([generator.choice(num_gaps, pairs, replace=False, p=probabilities) for _ in range(num)])
    for i in range(1, pairs):  # later draws: two samples of one distribution
        a, b = (np.bincount(x[:, i], minlength=num_gaps) for x in (gaps, theirs))
        assert ((a - b) ** 2 / (a + b)).sum() < 24.4


def test_keys_and_values_are_uniform() -> None:
    examples = mqar(20_000, 16, 4, vocab_size=18, seed=5)
    for start, low, size in ((0, 1, 8), (1, 9, 9)):
        counts = torch.bincount(examples.inputs[:, start:8:2].flatten() - low, minlength=size).double()
        assert counts.numel() == size
        expected = counts.sum() / size
        assert ((counts - expected) ** 2 / expected).sum() < 30  # drawn without replacement, they vary less than this


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_haystack(depth: float) -> None:
    examples = mqar_haystack(50, 40, 6, depth=depth, vocab_size=64)
    start = int((40 - 18) * depth)
    check_recall(examples, start, 6, 64)
    assert examples.positions.tolist() == [list(range(34, 40))] * 50
    assert (examples.inputs[:, :start] == 0).all()
    assert (examples.inputs[:, start + 12 : 34] == 0).all()
    orders = {tuple(row.tolist()) for row in examples.inputs[:, 34:] - examples.inputs[:, start : start + 12 : 2]}
    assert len(orders) > 25  # shuffled, each example in its own way


def test_single_query() -> None:
    examples = single_query_recall(200, 20, 6, vocab_size=64)
    check_recall(examples, 0, 6, 64)
    assert examples.positions.tolist() == [[19]] * 200
    asked = (examples.inputs[:, :12:2] == examples.inputs[:, -1:]).int().argmax(dim=1)
    assert torch.bincount(asked, minlength=6).min() > 10  # every place is asked for


def test_copying() -> None:
    examples = copying(20, 10, vocab_size=7)
    strings = examples.inputs[:, :5]
    assert (strings > 0).all()
    assert strings.max() == 6
    assert (examples.inputs[:, 5] == 0).all()
    assert torch.equal(examples.inputs[:, 6:], strings[:, :4])
    assert torch.equal(examples.labels[:, 5:], strings)
    assert (examples.labels[:, :5] == IGNORED).all()


# ---- An endless set ----

SMALL: dict[str, dict[str, Any]] = {
    "mqar": {"seq_len": 24, "num_pairs": 4},
    "mqar_haystack": {"seq_len": 24, "num_pairs": 4},
    "single_query_recall": {"seq_len": 24, "num_pairs": 4},
    "copying": {"seq_len": 24},
}


def assert_equal(a: Examples, b: Examples) -> None:
    for field in dataclasses.fields(Examples):
        assert torch.equal(getattr(a, field.name).cpu(), getattr(b, field.name).cpu()), field.name


@pytest.mark.parametrize("name", TASKS)
def test_examples_are_a_function_of_seed_and_index(name: str) -> None:
    task = TASKS[name]
    whole = task(10, **SMALL[name], seed=4)
    assert_equal(task(3, **SMALL[name], seed=4, first_example=5), whole[5:8])
    assert not torch.equal(task(10, **SMALL[name], seed=5).inputs, whole.inputs)
    assert len(whole) == 10


def test_making_them_in_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from rebased.tasks import examples as module

    whole = mqar(50, **SMALL["mqar"])
    monkeypatch.setattr(module, "BLOCK_NUMBERS", 100)
    assert_equal(mqar(50, **SMALL["mqar"]), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TASKS)
def test_the_same_bytes_on_a_gpu(name: str) -> None:
    options = SMALL[name] | ({"seq_len": 2048, "num_pairs": 512} if "num_pairs" in SMALL[name] else {})
    assert_equal(TASKS[name](2000, **options, device="cuda"), TASKS[name](2000, **options))


def test_leakage() -> None:
    train, test = mqar(2000, 24, 4, seed=42), mqar(300, 24, 4, seed=52)
    assert count_shared(train, test) == 0
    mixed = Examples(*(torch.cat([a, b]) for a, b in ((test.inputs, train.inputs[:7]), *[(test.positions,) * 2] * 2)))
    assert count_shared(train, mixed) == 7
    assert count_shared(train, mqar(5, 26, 4)) == 0


# ---- Bad settings ----


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: mqar(1, 12, 4), "num_pairs=4 needs seq_len >= 16, got 12"),
        (lambda: mqar(1, 13, 3), "seq_len=13 must be even"),
        (lambda: mqar(1, 256, 4, vocab_size=256), "vocab_size=256 must be greater than seq_len=256"),
        (lambda: mqar(1, 12, 0), "num_pairs=0 must be at least 1"),
        (lambda: mqar(0, 12, 3), "num_examples=0 must be at least 1"),
        (lambda: mqar(1, 12, 3, seed=-1), "seed=-1 must be at least 0"),
        (lambda: mqar(1, 12, 3, power=0.0), "power=0.0 must be positive"),
        (lambda: mqar(1, 256, 8, power=6.0), r"power=6.0 would make one of 120 gaps more than 2\*\*16 times as likely"),
        (lambda: mqar(1, 256, 8, power=300.0), "power=300.0 would make one of 120 gaps"),
        (lambda: mqar_haystack(1, 12, 5), "num_pairs=5 needs seq_len >= 15, got 12"),
        (lambda: mqar_haystack(1, 12, 3, depth=1.5), "depth=1.5 must be between 0 and 1"),
        (lambda: single_query_recall(1, 12, 6), "num_pairs=6 needs seq_len >= 13, got 12"),
        (lambda: copying(1, 7), "seq_len=7 must be even"),
        (lambda: copying(1, 8, vocab_size=1), "vocab_size=1 must be at least 2"),
    ],
)
def test_bad_settings(make: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def test_bad_types() -> None:
    with pytest.raises(TypeError, match=r"num_examples is 2\.0; it must be an integer"):
        mqar(2.0, 12, 3)
