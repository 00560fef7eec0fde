"""How many runs train together."""

import pytest
from recall_cases import small_run

from rebased.training.sizing import CPU_REPLICAS, MAX_REPLICAS, _choose, fitting


@pytest.mark.parametrize(
    ("fixed", "per_example", "expected"),
    [
        (1.0, 0.01, (MAX_REPLICAS, 1)),  # more would fit
        (1.0, 0.1, (9, 1)),  # 100 / (1 + 10)
        (1.0, 0.2, (9, 2)),  # 4 would fit: batches in two parts give 9
        (20.0, 0.2, (4, 4)),  # 20 of 100 each, however small the parts
        (200.0, 1.0, (1, 100)),  # not even one; it is tried all the same
    ],
)
def test_parts_before_few_replicas(fixed: float, per_example: float, expected: tuple[int, int]) -> None:
    assert _choose(100, fixed, per_example, usable=100.0) == expected


def test_on_a_cpu_nothing_is_tried() -> None:
    assert fitting(small_run(), "cpu") == (CPU_REPLICAS, 1)
