"""Sums by window, and what is made of them: identities over generated losses, and small cases by hand."""

import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rebased.analysis.tally import KINDS, Tally, bucket_of, bucket_start, jackknife_error

LENGTH = 600
TOKENS = st.lists(
    st.tuples(st.floats(0, 20), st.integers(0, 2), st.integers(1, LENGTH - 1), st.booleans(), st.integers(0, 4)),
    max_size=12,
)
"""Of one window: loss, set, position, whether it recurs, bytes."""


def tally_of(windows: list[list[tuple[float, int, int, bool, int]]]) -> Tally:
    tally = Tally(len(windows), 3, LENGTH)
    for window, tokens in enumerate(windows):
        losses, sets, positions, recurs, num_bytes = (np.array(column) for column in zip(*tokens, strict=True))
        tally.add(window, losses, sets=sets, positions=positions, recurs=recurs, num_bytes=num_bytes)
    return tally


@given(st.lists(TOKENS.filter(bool), min_size=1, max_size=4))
def test_parts_make_the_whole(windows: list[list[tuple[float, int, int, bool, int]]]) -> None:
    """Weighted by shares, the log-perplexities of AR and other tokens give that of all; so do sets and buckets."""
    tally = tally_of(windows)
    whole, fraction = tally.score(), tally.ar_fraction()
    assert whole.perplexity is not None
    assert fraction is not None
    shares = {"ar": fraction, "non_ar": 1 - fraction}
    mixed = sum(share * math.log(tally.score(kind).perplexity or 0) for kind, share in shares.items() if share)
    assert mixed == pytest.approx(math.log(whole.perplexity), abs=1e-9)
    for name, count in (("document_set", 3), ("bucket", 4)):
        for kind in KINDS:
            parts, every = [tally.score(kind, **{name: index}) for index in range(count)], tally.score(kind)
            assert sum(part.num_tokens for part in parts) == every.num_tokens
            nats = sum(part.num_tokens * part.loss for part in parts if part.loss is not None)
            assert nats == pytest.approx(every.num_tokens * (every.loss or 0), abs=1e-9)
        assert sum(tally.num_bytes(**{name: index}) for index in range(count)) == tally.num_bytes()


@given(st.lists(TOKENS.filter(bool), min_size=2, max_size=5))
def test_error_is_that_of_leaving_out_each_window(windows: list[list[tuple[float, int, int, bool, int]]]) -> None:
    without = [
        math.exp(math.fsum(loss for loss, *_ in rest) / len(rest))
        for rest in ([*chain(*windows[:i], *windows[i + 1 :])] for i in range(len(windows)))
    ]
    n, mean = len(without), math.fsum(without) / len(without)
    variance = (n - 1) / n * math.fsum((each - mean) ** 2 for each in without)
    assume(variance == 0 or variance > 1e-6 * mean**2)  # a spread by rounding alone says nothing
    assert tally_of(windows).score().standard_error == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-6)


def test_by_hand() -> None:
    """Two windows of two tokens: losses ln 2 and ln 8, and ln 4 twice; the second of each recurs, in set 1."""
    two, four, eight = (math.log(value) for value in (2, 4, 8))
    tally = tally_of(
        [[(two, 0, 1, False, 1), (eight, 1, 300, True, 0)], [(four, 0, 1, False, 2), (four, 1, 2, True, 1)]]
    )
    assert tally.score().perplexity == pytest.approx(4)
    assert tally.score().standard_error == pytest.approx(0, abs=1e-9)  # without either window, still 4
    assert tally.score("non_ar").perplexity == pytest.approx(8**0.5)
    assert tally.score("non_ar").standard_error == pytest.approx((0.5 * 2 * (4 - 3) ** 2) ** 0.5)  # 4 and 2
    assert tally.score("ar", document_set=0) == tally.score("ar", bucket=3)  # nothing
    assert tally.score("ar", document_set=0).num_tokens == 0
    assert tally.score("ar", document_set=0).perplexity is None
    assert tally.score(bucket=2).perplexity == pytest.approx(8)
    assert tally.score(bucket=2).standard_error is None  # one window only
    assert tally.ar_fraction() == 0.5
    assert tally.ar_fraction(bucket=0) == pytest.approx(1 / 3)
    assert tally.ar_fraction(bucket=3) is None
    assert tally.bits_per_byte() == pytest.approx((1 + 3 + 2 + 2) / 4)  # ends of text have bits and no bytes
    assert tally.bits_per_byte(document_set=1) == pytest.approx((3 + 2) / 1)
    assert tally.bits_per_byte(bucket=2) is None


def test_losses_beyond_all_sense() -> None:
    tally = tally_of([[(1e4, 0, 1, False, 1)], [(1.0, 0, 1, True, 1)]])
    assert tally.score().loss == pytest.approx(5000.5)
    assert tally.score().perplexity is None
    assert jackknife_error(np.array([1e4, 0.0]), np.array([1.0, 1e4])) is None


def test_buckets_double() -> None:
    starts = [bucket_start(bucket) for bucket in range(8)]
    assert starts == [0, 128, 256, 512, 1024, 2048, 4096, 8192]
    expected = [sum(position >= start for start in starts[1:]) for position in range(8192)]
    assert bucket_of(np.arange(8192)).tolist() == expected
