"""A bench of decoding as a table: a row per context."""

from rich.console import Console

from rebased.bench.decode_results import DecodeBenchResult, DecodeMeasurement
from rebased.cli.fitting import new_table
from rebased.cli.measured_table import print_measured
from rebased.cli.numbers import ABSENT, digits, milliseconds

__all__ = ["print_decode_result"]

_NAMES = {"state": "kernel_attention_step", "sdpa": "SDPA with a cache"}


def print_decode_result(result: DecodeBenchResult, console: Console) -> None:
    """Print the table, what was measured, and why cells are empty."""
    table = new_table()
    table.add_column("one token")
    for name in ("context", "ms", "of the state's time", "MiB held"):
        table.add_column(name, justify="right")
    for each in result.measurements:
        table.add_row(
            _NAMES[each.candidate],
            "any" if each.context is None else str(each.context),
            milliseconds(each.timing),
            ABSENT if each.slowdown is None else f"{digits(each.slowdown)}×",
            ABSENT if each.held_bytes is None else digits(each.held_bytes / 2**20),
        )
    print_measured(table, _caption(result), result, _skipped, console)


def _skipped(each: DecodeMeasurement) -> str:
    return f"{_NAMES[each.candidate]} skipped" + ("" if each.context is None else f" at {each.context}")


def _caption(result: DecodeBenchResult) -> str:
    config, environment = result.config, result.environment
    how = "replayed from a CUDA graph" if config.graphs else "called from Python"
    return (
        f"batch {config.batch_size}, {config.dtype}, {config.num_heads} heads with F={config.feature_dim} "
        f"D={config.head_dim}, SDPA {config.sdpa_heads} heads of {config.sdpa_head_dim}, {how}\n"
        f"{environment.device_name}, torch {environment.torch}; ms: median ± interquartile range"
    )
