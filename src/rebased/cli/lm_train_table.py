"""A bench of training language models as a table: a row per length and model."""

from rich.console import Console

from rebased.bench.lm_train_results import TrainBenchResult
from rebased.cli.fitting import new_table
from rebased.cli.measured_table import print_measured
from rebased.cli.numbers import ABSENT, digits, milliseconds

__all__ = ["print_train_result"]


def print_train_result(result: TrainBenchResult, console: Console) -> None:
    """Print the table, what was measured, and why cells are empty."""
    config, environment = result.config, result.environment
    table = new_table()
    table.add_column("length", justify="right")
    table.add_column("model")
    columns = (
        "tokens/s",
        f"of {config.models[0]}'s",
        "6N·tokens/s, TFLOP/s",
        "ms per step",
        "peak, GiB",
        "first step, s",
    )
    for name in columns:
        table.add_column(name, justify="right")
    for each in result.measurements:
        table.add_row(
            str(each.length),
            each.model,
            ABSENT if each.tokens_per_second is None else f"{each.tokens_per_second:,.0f}",
            ABSENT if each.speedup is None else f"{digits(each.speedup)}×",
            ABSENT if each.parameter_flops is None else digits(each.parameter_flops / 1e12),
            milliseconds(each.timing),
            ABSENT if each.peak_bytes is None else digits(each.peak_bytes / 2**30),
            ABSENT if each.first_seconds is None else digits(each.first_seconds),
        )
    caption = (
        f"{config.tokens} tokens a step, {config.dtype}, {'compiled' if config.compile else 'not compiled'}; "
        "a step: forward, loss, backward, AdamW; ms: median ± interquartile range\n"
        f"{environment.device_name}, torch {environment.torch}"
    )
    print_measured(table, caption, result, lambda each: f"{each.model} skipped at {each.length}", console)
