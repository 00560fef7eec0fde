"""The table of a bench, character by character."""

import io

import pytest
import torch
from rich.console import Console

from rebased.bench.config import OpsBenchConfig
from rebased.bench.environment import describe_environment
from rebased.bench.results import CandidateGrowth, Measurement, OpsBenchResult
from rebased.bench.timing import Timing
from rebased.cli.ops_table import _digits, print_ops_result


def timing(milliseconds: float) -> Timing:
    return Timing.from_samples([milliseconds / 1e3])


def small_result(other_cpus: float | None = None) -> OpsBenchResult:
    config = OpsBenchConfig(backends=("chunked",), lengths=(512, 1024), max_sdpa_length=512)
    return OpsBenchResult(
        config=config,
        environment=describe_environment(torch.device("cpu")),
        errors={"chunked": 0.0},
        other_cpus=other_cpus,
        measurements=(
            Measurement(candidate="chunked", length=512, timing=timing(5), peak_bytes=2**20, speedup_over_sdpa=2.0),
            Measurement(candidate="sdpa", length=512, timing=timing(10), peak_bytes=2**21, speedup_over_sdpa=1.0),
            Measurement(candidate="chunked", length=1024, timing=timing(12.5), peak_bytes=2**21),
            Measurement(candidate="sdpa", length=1024, skipped="longer than max_sdpa_length=512"),
        ),
        growth=(
            CandidateGrowth(candidate="chunked", time_exponent=1.3219, memory_exponent=1.0),
            CandidateGrowth(candidate="sdpa", time_exponent=None, memory_exponent=None),
        ),
    )


def printed(result: OpsBenchResult) -> list[str]:
    page = io.StringIO()
    print_ops_result(result, Console(file=page, width=100))
    return page.getvalue().splitlines()


def test_printed_table() -> None:
    lines = printed(small_result())
    assert [line.split() for line in lines[:5]] == [
        ["chunked", "sdpa"],
        ["length", "ms", "speed", "MiB", "ms", "MiB"],
        ["512", "5.00", "±", "0.000", "2.00×", "1.00", "10.0", "±", "0.000", "2.00"],
        ["1024", "12.5", "±", "0.000", "—", "2.00", "—", "—"],
        ["growth", "T^1.32", "T^1.00", "—", "—"],
    ]
    assert lines[5].startswith("forward, float32, B=1 H=12 F=16 D=64, ")
    assert lines[-1] == "sdpa skipped at 1024: longer than max_sdpa_length=512"


@pytest.mark.parametrize(("other_cpus", "warned"), [(None, False), (0.05, False), (1.5, True)])
def test_busy_machine_is_named(other_cpus: float | None, warned: bool) -> None:
    lines = printed(small_result(other_cpus))
    assert any("other processes kept 1.5 CPUs busy" in line for line in lines) == warned


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1234")]
)
def test_three_digits(value: float, text: str) -> None:
    assert _digits(value) == text
