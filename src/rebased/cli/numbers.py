"""Numbers as tables and lines show them."""

from rebased.bench.timing import Timing

__all__ = ["ABSENT", "clock", "count", "digits", "milliseconds"]

ABSENT = "—"


def count(number: int, noun: str) -> str:
    """``1 run``, ``2,000 runs``."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def clock(seconds: float) -> str:
    """``0:01:30``."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


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
