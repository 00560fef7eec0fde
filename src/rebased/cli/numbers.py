"""Numbers as tables show them."""

from rebased.bench.timing import Timing

__all__ = ["ABSENT", "digits", "milliseconds"]

ABSENT = "—"


def digits(value: float) -> str:
    """Three significant digits, without an exponent: 0.123, 1.23, 12.3, 123, 1234."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def milliseconds(timing: Timing | None) -> str:
    """Median and spread."""
    if timing is None:
        return ABSENT
    return f"{digits(timing.median_seconds * 1e3)} ± {digits(timing.spread_seconds * 1e3)}"
