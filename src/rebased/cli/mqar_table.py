"""A bench of training on MQAR as a table: a row per length and number of replicas."""

from rich.console import Console

from rebased.bench.mqar_results import MqarBenchResult
from rebased.cli.fitting import new_table
from rebased.cli.measured_table import print_measured
from rebased.cli.numbers import ABSENT, digits, milliseconds

__all__ = ["print_mqar_result"]


def print_mqar_result(result: MqarBenchResult, console: Console) -> None:
    """Print the table, what was measured, and why cells are empty."""
    table = new_table()
    for name in ("length", "replicas", "ms per step", "ms per replica and step", "peak, GiB", "first step, s"):
        table.add_column(name, justify="right")
    for each in result.measurements:
        table.add_row(
            str(each.length),
            str(each.replicas),
            milliseconds(each.timing),
            ABSENT if each.step_seconds is None else digits(each.step_seconds * 1e3),
            ABSENT if each.peak_bytes is None else digits(each.peak_bytes / 2**30),
            ABSENT if each.first_seconds is None else digits(each.first_seconds),
        )
    config, environment = result.config, result.environment
    caption = (
        f"{config.stack}, d_model {config.d_model}, {config.num_pairs} pairs, batch {config.batch_size} in "
        f"{config.micro_batches} parts, {config.dtype}\n"
        f"{environment.device_name}, torch {environment.torch}; a step: choosing examples, forward, loss, "
        "backward, AdamW; ms: median ± interquartile range"
    )
    print_measured(table, caption, result, lambda each: f"{each.replicas} replicas skipped at {each.length}", console)
