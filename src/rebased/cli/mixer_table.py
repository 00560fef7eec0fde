"""A bench of mixers as a table: a row per mixer and length."""

from rich.console import Console

from rebased.bench.mixer_results import MixerBenchResult
from rebased.cli.fitting import new_table
from rebased.cli.measured_table import print_measured
from rebased.cli.numbers import ABSENT, digits, milliseconds

__all__ = ["print_mixer_result"]


def print_mixer_result(result: MixerBenchResult, console: Console) -> None:
    """Print the table, what was measured, and why cells are empty."""
    first = result.config.mixers[0]
    table = new_table()
    table.add_column("mixer")
    for name in ("length", "ms", f"/ {first}", "MiB", f"/ {first}", "state, KiB"):
        table.add_column(name, justify="right")
    for each in result.measurements:
        table.add_row(
            each.mixer,
            str(each.length),
            milliseconds(each.timing),
            ABSENT if each.time_ratio is None else f"{digits(each.time_ratio)}×",
            ABSENT if each.peak_bytes is None else digits(each.peak_bytes / 2**20),
            ABSENT if each.memory_ratio is None else f"{digits(each.memory_ratio)}×",
            ABSENT if each.state_bytes is None else digits(each.state_bytes / 2**10),
        )
    print_measured(table, _caption(result), result, lambda each: f"{each.mixer} skipped at {each.length}", console)


def _caption(result: MixerBenchResult) -> str:
    config, environment = result.config, result.environment
    what = "forward" if config.passes == "forward" else "forward + backward"
    if config.device == "cuda":
        what += ", replayed from a CUDA graph"
    return (
        f"{what}, batch {config.batch_size}, d_model {config.d_model}, {config.dtype}\n"
        f"{environment.device_name}, torch {environment.torch}; ms: median ± interquartile range; "
        f"/ {config.mixers[0]}: this over that one's, above 1 is slower or larger"
    )
