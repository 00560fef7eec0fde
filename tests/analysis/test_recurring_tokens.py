"""Which tokens recur, against the definition in plain Python and by hand."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebased.analysis.recurrence import recurs


def by_definition(tokens: list[int], by: str) -> list[bool]:
    """Of one text."""
    found = []
    for t, token in enumerate(tokens):
        if by == "token":
            found.append(token in tokens[:t])
        else:
            pairs = [(tokens[s - 1], tokens[s]) for s in range(1, t)]
            found.append(t > 0 and (tokens[t - 1], token) in pairs)
    return found


@st.composite
def windows(draw: st.DrawFn) -> tuple[list[list[list[int]]], str]:
    """Rows of equal length, each of texts in a row; few tokens, so that many recur, and some too large to pair up."""
    size = draw(st.integers(1, 5))
    alphabet = draw(st.lists(st.integers(0, 2**62), min_size=size, max_size=size))
    length, num_rows = draw(st.integers(0, 50)), draw(st.integers(1, 3))
    rows = []
    for _ in range(num_rows):
        row = draw(st.lists(st.sampled_from(alphabet), min_size=length, max_size=length))
        borders = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=4))})
        rows.append([row[start:stop] for start, stop in pairwise(borders)])
    return rows, draw(st.sampled_from(["bigram", "token"]))


@given(windows())
def test_is_the_definition(case: tuple[list[list[list[int]]], str]) -> None:
    rows, by = case
    tokens = np.array([[*chain(*texts)] for texts in rows], dtype=np.int64)
    whole = [by_definition([*chain(*texts)], by) for texts in rows]
    np.testing.assert_array_equal(recurs(tokens, by), np.array(whole, dtype=bool))
    numbers = [[i for i, text in enumerate(texts) for _ in text] for texts in rows]
    apart = [[found for text in texts for found in by_definition(text, by)] for texts in rows]
    sequences = np.array(numbers, dtype=np.int64)
    np.testing.assert_array_equal(recurs(tokens, by, sequences=sequences), np.array(apart, dtype=bool))


def test_by_hand() -> None:
    """Of "a b a b b b a": the second "a b", the second "b b" (which overlaps the first), and the last "b a"."""
    tokens = np.array([[1, 2, 1, 2, 2, 2, 1]])
    assert recurs(tokens).tolist() == [[False, False, False, True, False, True, True]]
    assert recurs(tokens, "token").tolist() == [[False, False, True, True, True, True, True]]


def test_pairs_that_do_not_fit_into_64_bits() -> None:
    large = 2**62
    tokens = np.array([[0, large, 1, 0, large, 1, large, 0, large]])
    expected = by_definition(tokens[0].tolist(), "bigram")
    assert expected.count(True) == 3
    assert recurs(tokens).tolist() == [expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": np.array([1, 2])}, r"tokens has shape \(2,\); it must be \(W, T\)"),
        ({"tokens": np.array([[1, -2]])}, "tokens has -2; none may be negative"),
        ({"by": "trigram"}, "recurrence='trigram' is unknown; it may be 'bigram', 'token'"),
        ({"sequences": np.array([[0, 0]])}, r"sequences has shape \(1, 2\); it must be \(1, 3\)"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recurs(**{"tokens": np.array([[1, 2, 3]]), **arguments})


def test_narrow_types_have_room() -> None:
    """One number more than the largest token is needed."""
    tokens = np.array([[7, 65535, 9, 65535, 8, 65535]], dtype=np.uint16)
    assert not recurs(tokens).any()
