"""A bench of the operators as tables: one for each choice of passes, rows by candidate, columns by length."""

from collections.abc import Callable, Set

from rich.console import Console
from rich.table import Table

from rebased.bench.results import Measurement, OpsBenchResult
from rebased.cli.console import print_text
from rebased.cli.contention import warn_of_contention
from rebased.cli.fitting import new_table, print_fitting
from rebased.cli.numbers import ABSENT, count, digits, milliseconds

__all__ = ["print_ops_result"]

_TITLES = {"forward": "forward", "both": "forward + backward"}


def print_ops_result(result: OpsBenchResult, console: Console) -> None:
    """Print the tables, what was measured, and why cells are empty; at first of candidates that have no others."""
    timed = {each.candidate for each in result.measurements if each.timing}
    for line in _skipped(result, set(result.config.candidates) - timed):
        print_text(line, console)
    for passes in result.config.passes if timed else ():
        print_fitting(_table(result, passes, timed), console, keys=2)
        console.print()
    print_text(_caption(result), console)
    warn_of_contention(result.other_cpus, console)
    for line in _skipped(result, timed):
        print_text(line, console)


def _table(result: OpsBenchResult, passes: str, timed: Set[str]) -> Table:
    table = new_table()
    table.add_column(_TITLES[passes])
    table.add_column("")
    for length in result.config.lengths:
        table.add_column(str(length), justify="right")
    table.add_column("growth", justify="right", style="bold")
    for candidate in filter(timed.__contains__, result.config.candidates):
        cells = [result.at(candidate, length, passes) for length in result.config.lengths]
        (growth,) = (each for each in result.growth if (each.candidate, each.passes) == (candidate, passes))
        table.add_row(candidate, "ms", *_row(cells, _time), _exponent(growth.time_exponent), style="bold")
        if not any(cell.timing for cell in cells):
            continue
        if candidate != "sdpa":
            table.add_row("", "speed", *_row(cells, _speed), style="green")
            if result.rates is not None:
                table.add_row("", "limit", *_row(cells, _limit))
        if any(cell.launch_seconds for cell in cells):
            table.add_row("", "launch", *_row(cells, _launch))
        table.add_row("", "MiB", *_row(cells, _memory), _exponent(growth.memory_exponent), style="cyan")
    return table


def _row(cells: list[Measurement], show: Callable[[Measurement], str]) -> list[str]:
    return [show(cell) for cell in cells]


def _time(cell: Measurement) -> str:
    return milliseconds(cell.timing)


def _speed(cell: Measurement) -> str:
    return ABSENT if cell.speedup_over_sdpa is None else f"{digits(cell.speedup_over_sdpa)}×"


def _limit(cell: Measurement) -> str:
    return ABSENT if cell.limit_fraction is None else f"{digits(cell.limit_fraction * 100)}%"


def _launch(cell: Measurement) -> str:
    return ABSENT if cell.launch_seconds is None else digits(cell.launch_seconds * 1e3)


def _memory(cell: Measurement) -> str:
    return ABSENT if cell.peak_bytes is None else digits(cell.peak_bytes / 2**20)


def _exponent(exponent: float | None) -> str:
    return ABSENT if exponent is None else f"T^{exponent:.2f}"


def _skipped(result: OpsBenchResult, candidates: Set[str]) -> list[str]:
    """A line for each candidate and reason; one that holds for all passes names none."""
    found: dict[tuple[str, str], dict[int, list[str]]] = {}
    for each in result.measurements:
        if each.skipped and each.candidate in candidates:
            found.setdefault((each.candidate, each.skipped), {}).setdefault(each.length, []).append(each.passes)
    lines = []
    for (candidate, reason), places in found.items():
        where = (
            str(length) + ("" if len(passes) == len(result.config.passes) else f" ({_TITLES[passes[0]]})")
            for length, passes in places.items()
        )
        lines.append(f"{candidate} skipped at {', '.join(where)}: {reason}")
    return lines


def _caption(result: OpsBenchResult) -> str:
    config, environment = result.config, result.environment
    batch = f"{config.tokens} tokens" if config.tokens else f"B={config.batch_size or 1}"
    heads, size = config.sdpa_shape
    sizes = f"{batch} H={config.num_heads} F={config.feature_dim} D={config.head_dim}, SDPA {heads} heads of {size}"
    where = environment.device_name + ("" if config.device == "cuda" else f", {count(environment.threads, 'thread')}")
    lines = [
        f"{config.dtype}, {sizes}, {where}, torch {environment.torch}",
        "ms: median ± interquartile range of a call; speed: SDPA's median over this one's, above 1 is faster;",
        "MiB: peak memory of a call beyond its inputs; growth: exponent fitted over the lengths T",
    ]
    if config.device == "cuda":
        how = "replayed from a CUDA graph" if config.graphs else "called from Python"
        lines.append(f"calls are {how}; launch: milliseconds that a call from Python keeps the CPU")
    if result.rates is not None:
        moved, computed = result.rates.bytes_per_second / 1e9, result.rates.flops_per_second / 1e12
        lines.append(
            f"limit: the linear form's least time over this one's, at {digits(moved)} GB/s and "
            f"{digits(computed)} TFLOP/s measured here"
        )
    return "\n".join(lines)
