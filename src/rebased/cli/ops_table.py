"""A bench of the operators as a table: a row per length, columns per candidate, growth exponents last."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rebased.bench.results import CandidateGrowth, Measurement, OpsBenchResult

__all__ = ["print_ops_result"]

_ABSENT = "—"
_QUIET = (
    0.2  # CPUs that others may use before timings are in doubt; an idle machine's own services take a few hundredths
)


def print_ops_result(result: OpsBenchResult, console: Console) -> None:
    """Print the table, what was measured, and why cells are empty."""
    console.print(_table(result))
    console.print(Text(_caption(result)), soft_wrap=True)
    if (result.other_cpus or 0) > _QUIET:
        warning = (
            f"warning: other processes kept {result.other_cpus:.1f} CPUs busy meanwhile; time again on a quiet machine"
        )
        console.print(Text(warning, style="yellow"), soft_wrap=True)
    skipped: dict[tuple[str, str], list[str]] = {}
    for each in result.measurements:
        if each.skipped:
            skipped.setdefault((each.candidate, each.skipped), []).append(str(each.length))
    for (candidate, reason), lengths in skipped.items():
        console.print(Text(f"{candidate} skipped at {', '.join(lengths)}: {reason}"), soft_wrap=True)


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
