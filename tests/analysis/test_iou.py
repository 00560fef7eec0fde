"""IoU on maps made by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rebased.analysis.iou import attention_iou, intersection_and_union

MAPS = arrays(np.float64, (2, 3, 5), elements=st.integers(0, 8).map(lambda value: value / 8))
ONES = np.ones((2, 3, 5))


def test_by_hand() -> None:
    attention = np.array([[0.7, 0.3, 0.0], [0.2, 0.2, 0.6]])
    truth = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert attention_iou(attention, truth) == pytest.approx((0.7 + 0.6) / (1 + 0.3 + 0.2 + 0.2 + 1))
    first_row, first_two = np.array([True, False]), np.array([True, True, False])
    assert attention_iou(attention, truth, rows=first_row) == pytest.approx(0.7 / 1.3)
    assert attention_iou(attention, truth, columns=first_two) == pytest.approx(0.7 / 1.7)
    assert attention_iou(attention, truth, rows=first_row, columns=first_two) == pytest.approx(0.7 / 1.3)


def test_the_papers_softmax() -> None:
    """A peak of 0.9995 gives Table 3's 0.999 (FACTS.md)."""
    attention = np.full((1, 64), 0.0005 / 63)
    attention[0, 7] = 0.9995
    truth = np.eye(64)[None, 7]
    assert attention_iou(attention, truth) == pytest.approx(0.999, abs=2e-6)


def test_rows_of_each_map_differ() -> None:
    """Queries sit elsewhere in each example; the pairs do not."""
    attention = np.full((2, 3, 4), 0.25)
    truth = np.zeros((2, 3, 4))
    truth[0, 1, 0] = truth[1, 2, 3] = 1
    rows = np.array([[False, True, False], [False, False, True]])
    columns = np.array([True, True, False, False])
    intersections, unions = intersection_and_union(attention, truth, rows=rows, columns=columns)
    assert intersections.tolist() == [0.25, 0]
    assert unions.tolist() == [1.25, 0.5]
    assert attention_iou(attention, truth, rows=rows, columns=columns) == pytest.approx(0.25 / 1.75)


@given(attention=MAPS, truth=MAPS.map(lambda array: array + 0.125))
def test_what_must_hold(attention: np.ndarray, truth: np.ndarray) -> None:
    iou = attention_iou(attention, truth)
    assert 0 <= iou <= 1
    assert attention_iou(truth, attention) == iou
    assert attention_iou(truth, truth) == 1
    assert attention_iou(4 * attention, 4 * truth) == pytest.approx(iou)
    overlap = 2 * iou / (1 + iou) * (attention.sum() + truth.sum())  # min + max = sum: Dice from IoU
    assert overlap == pytest.approx(2 * np.minimum(attention, truth).sum())


@given(attention=MAPS, truth=MAPS, data=st.data())
def test_masks_are_indexing(attention: np.ndarray, truth: np.ndarray, data: st.DataObject) -> None:
    rows = data.draw(arrays(bool, 3))
    columns = data.draw(arrays(bool, 5))
    some = intersection_and_union(attention, truth, rows=rows, columns=columns)
    region = np.ix_([True, True], rows, columns)
    for ours, expected in zip(some, intersection_and_union(attention[region], truth[region]), strict=True):
        np.testing.assert_allclose(ours, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": -ONES}, "attention has the negative value -1"),
        ({"truth": ONES * np.nan}, "truth has 30 values that are not finite"),
        ({"truth": ONES[:1]}, r"attention \(2, 3, 5\) and truth \(1, 3, 5\)"),
        ({"rows": np.array([0, 2])}, "rows has dtype int64"),
        ({"rows": np.ones(5, dtype=bool)}, r"rows has shape \(5,\); it must be \(2, 3\)"),
        ({"rows": np.ones((4, 3), dtype=bool)}, r"rows has shape \(4, 3\)"),
        ({"columns": np.ones(1, dtype=bool)}, r"columns has shape \(1,\); it must be \(2, 5\)"),
        ({"columns": np.zeros(5, dtype=bool)}, "zero in all chosen"),
    ],
)
def test_bad_input(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention_iou(**{"attention": ONES, "truth": ONES, **arguments})
