"""A bench of the operators as a table: a row per length, columns per candidate, growth exponents last."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rebased.bench.results import CandidateGrowth, Measurement, OpsBenchResult

__all__ = ["print_ops_result"]

_ABSENT = "—"


def print_ops_result(result: OpsBenchResult, console: Console) -> None:
    """Print the table, what was measured, and why cells are empty."""
    console.print(_table(result))
    console.print(Text(_caption(result)), soft_wrap=True)
    for each in result.measurements:
        if each.skipped:
            console.print(Text(f"{each.candidate} at {each.length} skipped: {each.skipped}"), soft_wrap=True)


def _table(result: OpsBenchResult) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("\nlength", justify="right", no_wrap=True)
    for candidate in result.config.candidates:
        table.add_column(f"{candidate}\nms", justify="right", no_wrap=True)
        if candidate != "sdpa":
            table.add_column("\nspeed", justify="right", no_wrap=True, style="green")
        table.add_column("\nMiB", justify="right", no_wrap=True, style="cyan")
    for length in result.config.lengths:
        row = [str(length)]
        for candidate in result.config.candidates:
            row += _cells(result.at(candidate, length))
        table.add_row(*row)
    table.add_section()
    growth = ["growth"]
    for each in result.growth:
        growth += _growth_cells(each)
    table.add_row(*growth, style="bold")
    return table


def _cells(measurement: Measurement) -> list[str]:
    time = speed = memory = _ABSENT
    if measurement.timing is not None:
        time = (
            f"{_digits(measurement.timing.median_seconds * 1e3)} ± {_digits(measurement.timing.spread_seconds * 1e3)}"
        )
    if measurement.speedup_over_sdpa is not None:
        speed = f"{_digits(measurement.speedup_over_sdpa)}×"
    if measurement.peak_bytes is not None:
        memory = _digits(measurement.peak_bytes / 2**20)
    return [time, memory] if measurement.candidate == "sdpa" else [time, speed, memory]


def _growth_cells(growth: CandidateGrowth) -> list[str]:
    time, memory = (
        _ABSENT if exponent is None else f"T^{exponent:.2f}"
        for exponent in (growth.time_exponent, growth.memory_exponent)
    )
    return [time, memory] if growth.candidate == "sdpa" else [time, "", memory]


def _digits(value: float) -> str:
    """Three significant digits, without an exponent: 0.123, 1.23, 12.3, 123, 1234."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _caption(result: OpsBenchResult) -> str:
    config, environment = result.config, result.environment
    what = "forward + backward" if config.backward else "forward"
    sizes = f"B={config.batch_size} H={config.num_heads} F={config.feature_dim} D={config.head_dim}"
    where = environment.device_name + ("" if config.device == "cuda" else f", {environment.threads} threads")
    return (
        f"{what}, {config.dtype}, {sizes}, {where}, torch {environment.torch}\n"
        "ms: median ± interquartile range of a call; speed: SDPA's median over this one's, above 1 is faster;\n"
        "MiB: peak memory of a call beyond its inputs; growth: exponent fitted over the lengths T"
    )
