"""A bench of generation as a table: a row per context and model."""

from rich.console import Console

from rebased.bench.lm_generate_results import GenerateBenchResult
from rebased.cli.fitting import new_table
from rebased.cli.measured_table import print_measured
from rebased.cli.numbers import ABSENT, digits

__all__ = ["print_generate_result"]


def print_generate_result(result: GenerateBenchResult, console: Console) -> None:
    """Print the table, what was measured, and why cells are empty."""
    config, environment = result.config, result.environment
    table = new_table()
    table.add_column("context", justify="right")
    table.add_column("model")
    for name in ("tokens/s", f"of {config.models[0]}'s", "ms per step", "prompt, s", "cache, MiB", "peak, MiB"):
        table.add_column(name, justify="right")
    for each in result.measurements:
        step = None if each.timing is None else each.timing.median_seconds / config.new_tokens
        table.add_row(
            str(each.context),
            each.model,
            ABSENT if each.tokens_per_second is None else f"{each.tokens_per_second:,.0f}",
            ABSENT if each.speedup is None else f"{digits(each.speedup)}×",
            ABSENT if step is None else digits(step * 1e3),
            ABSENT if each.prompt_seconds is None else digits(each.prompt_seconds),
            ABSENT if each.held_bytes is None else digits(each.held_bytes / 2**20),
            ABSENT if each.peak_bytes is None else digits(each.peak_bytes / 2**20),
        )
    caption = (
        f"batch {config.batch_size}, {config.dtype}, greedy, {config.new_tokens} new tokens at a time, "
        f"median of {config.repetitions}\n{environment.device_name}, torch {environment.torch}"
    )
    print_measured(table, caption, result, lambda each: f"{each.model} skipped at {each.context}", console)
