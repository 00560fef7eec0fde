"""The limit, worked by hand."""

import pytest

from rebased.bench.limit import Limit, _pairs, compute_limit
from rebased.bench.rates import Rates

SLOW_MEMORY = Rates(bytes_per_second=1.0, flops_per_second=1e30)
SLOW_PRODUCTS = Rates(bytes_per_second=1e30, flops_per_second=1.0)


def limit(length: int, passes: str, rates: Rates, **sizes: int) -> Limit:
    shape = {"batch_size": 1, "num_heads": 1, "feature_dim": 2, "head_dim": 3, "element_size": 2}
    return compute_limit(length, passes, rates, **(shape | sizes))


def test_bytes_by_hand() -> None:
    """F = 2, D = 3, two bytes a number: q, k, v, out are 2+2+3+3; dout, dq, dk, dv and the inputs again 7+3+7."""
    assert limit(5, "forward", SLOW_MEMORY).seconds == pytest.approx(2 * 5 * 10)
    assert limit(5, "both", SLOW_MEMORY).seconds == pytest.approx(2 * 5 * (10 + 17))
    assert limit(5, "both", SLOW_MEMORY, batch_size=3, num_heads=7).num_bytes == 21 * 2 * 5 * 27


def test_short_sequences_are_quadratic() -> None:
    """Eight tokens have 36 pairs, each 2(F + D + 1) = 12 FLOPs, backward 2(3F + 2(D + 1)) = 28."""
    assert limit(8, "forward", SLOW_PRODUCTS).flops == 36 * 12
    assert limit(8, "both", SLOW_PRODUCTS).flops == 36 * (12 + 28)


def test_long_sequences_go_through_the_state() -> None:
    """In chunks of 16: 4 of 136 pairs; two products with 3 features and 4 columns for 48 tokens, backward five."""
    forward = 4 * 136 * 12 + 2 * (2 * 3 * 4) * 48
    backward = 4 * 136 * 28 + 5 * (2 * 3 * 4) * 48
    assert limit(64, "forward", SLOW_PRODUCTS).flops == forward
    assert limit(64, "both", SLOW_PRODUCTS).flops == forward + backward
    assert limit(64, "both", SLOW_PRODUCTS).seconds == pytest.approx(forward + backward)


def test_the_larger_of_the_two_binds_each_pass() -> None:
    """Rates at which memory binds forward, where it takes 1 s, and products bind backward, where they take 2."""
    forward, both = limit(64, "forward", SLOW_MEMORY), limit(64, "both", SLOW_MEMORY)
    backward_flops = both.flops - forward.flops
    rates = Rates(bytes_per_second=forward.num_bytes, flops_per_second=backward_flops / 2)
    found = limit(64, "both", rates)
    assert found.memory_seconds == pytest.approx(1 + 1.7)
    assert found.compute_seconds == pytest.approx(2 * forward.flops / backward_flops + 2)
    assert found.seconds == pytest.approx(1 + 2)


def test_backward_through_the_state_is_two_and_a_half_times_forward() -> None:
    """Where the state is all that matters, with many features."""
    forward, both = (
        limit(1 << 20, passes, SLOW_PRODUCTS, feature_dim=64, head_dim=64) for passes in ("forward", "both")
    )
    assert both.flops / forward.flops == pytest.approx(3.5, rel=0.01)


def test_linear_in_length() -> None:
    short, long = (limit(length, "both", SLOW_PRODUCTS, feature_dim=16, head_dim=64) for length in (4096, 65536))
    assert long.flops / short.flops == pytest.approx(16, rel=0.01)


def test_the_card_in_the_anchors() -> None:
    """65,536 tokens, 12 heads, F 16, D 64 in bfloat16 at 4.27 TB/s and 790 TFLOP/s: 0.059 and 0.153 ms."""
    rates = Rates(bytes_per_second=4.27e12, flops_per_second=7.9e14)
    forward, both = (
        limit(8192, passes, rates, batch_size=8, num_heads=12, feature_dim=16, head_dim=64)
        for passes in ("forward", "both")
    )
    assert forward.num_bytes == pytest.approx(252e6, rel=0.01)
    assert forward.flops == pytest.approx(29e9, rel=0.02)
    assert forward.seconds * 1e3 == pytest.approx(0.059, rel=0.01)
    assert both.seconds * 1e3 == pytest.approx(0.153, rel=0.01)


@pytest.mark.parametrize(("T", "C"), [(1, 1), (7, 7), (7, 16), (16, 4), (19, 4)])
def test_pairs_by_counting(T: int, C: int) -> None:
    assert _pairs(T, C) == sum(s <= t and s // C == t // C for t in range(T) for s in range(T))
