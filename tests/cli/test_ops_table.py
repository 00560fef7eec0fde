"""The tables of a bench, character by character."""

import dataclasses
import io

import pytest
from rich.console import Console

from bench.results_by_hand import small_result
from rebased.bench.accuracy import Accuracy
from rebased.bench.results import OpsBenchResult
from rebased.cli.accuracy_table import print_accuracy
from rebased.cli.numbers import digits
from rebased.cli.ops_table import print_ops_result


def printed(result: OpsBenchResult) -> list[str]:
    page = io.StringIO()
    print_ops_result(result, Console(file=page, width=100))
    print_accuracy(result, Console(file=page, width=100))
    return page.getvalue().splitlines()


def test_printed_table() -> None:
    lines = printed(small_result())
    assert [line.split() for line in lines[:8]] == [
        ["forward", "512", "1024", "growth"],
        ["chunked", "ms", "5.00", "±", "0.000", "12.5", "±", "0.000", "T^1.32"],
        ["speed", "2.00×", "—"],
        ["limit", "10.2%", "8.19%"],
        ["MiB", "1.00", "2.00", "T^1.00"],
        ["sdpa", "ms", "10.0", "±", "0.000", "—", "—"],
        ["MiB", "2.00", "—", "—"],
        [],
    ]
    assert lines[8].startswith("float32, B=1 H=12 F=16 D=64, SDPA 12 heads of 64, ")
    assert lines[11].startswith("limit: ")
    assert "at 20.0 GB/s and 0.100 TFLOP/s measured here" in lines[11]
    assert lines[-1] == "sdpa skipped at 1024: longer than max_sdpa_length=512"


def test_reason_stands_instead_of_a_row_without_a_number() -> None:
    result = small_result()
    refused = [
        dataclasses.replace(each, timing=None, peak_bytes=None, skipped="needs a CUDA device")
        if each.candidate == "chunked"
        else each
        for each in result.measurements
    ]
    lines = printed(dataclasses.replace(result, measurements=tuple(refused)))
    assert lines[0] == "chunked skipped at 512, 1024: needs a CUDA device"
    assert [line.split()[0] for line in lines[1:4]] == ["forward", "sdpa", "MiB"]
    assert lines[-1] == "sdpa skipped at 1024: longer than max_sdpa_length=512"

    nothing = [dataclasses.replace(each, timing=None, skipped="out of memory") for each in refused]
    lines = printed(dataclasses.replace(result, measurements=tuple(nothing)))
    assert lines[1] == "sdpa skipped at 512, 1024: out of memory"
    assert lines[2].startswith("float32, B=1")


def test_on_a_gpu_the_table_says_how_calls_are_made() -> None:
    result = small_result()
    cells = [dataclasses.replace(each, launch_seconds=4e-4) for each in result.measurements]
    config = dataclasses.replace(result.config, device="cuda", graphs=True)
    lines = printed(dataclasses.replace(result, config=config, measurements=tuple(cells)))
    assert lines[4].split() == ["launch", "0.400", "0.400"]
    assert any(line.startswith("calls are replayed from a CUDA graph; launch: ") for line in lines)


def test_a_table_for_each_choice_of_passes() -> None:
    lines = printed(small_result(passes=("forward", "both")))
    assert lines[0].startswith("forward ")
    assert lines[8].startswith("forward + backward ")
    assert lines[9].split()[:3] == ["chunked", "ms", "10.0"]
    assert lines[-1] == "sdpa skipped at 1024: longer than max_sdpa_length=512"


def test_a_reason_that_holds_for_one_of_the_passes() -> None:
    result = small_result(passes=("forward", "both"))
    first = dataclasses.replace(result.measurements[0], timing=None, skipped="too slow")
    lines = printed(dataclasses.replace(result, measurements=(first, *result.measurements[1:])))
    assert "chunked skipped at 512 (forward): too slow" in lines


def test_without_rates_there_is_no_limit() -> None:
    lines = printed(small_result(rates=None, limits=()))
    assert not any("limit" in line and "max_sdpa" not in line for line in lines)


@pytest.mark.parametrize(("other_cpus", "warned"), [(None, False), (0.05, False), (1.5, True)])
def test_busy_machine_is_named(other_cpus: float | None, warned: bool) -> None:
    lines = printed(small_result(other_cpus=other_cpus))
    assert any("other processes kept 1.5 CPUs busy" in line for line in lines) == warned


def test_errors_beside_sdpas() -> None:
    def of(candidate: str, **errors: float | None) -> Accuracy:
        return Accuracy(candidate=candidate, length=512, sequences=1, heads=2, **errors)  # type: ignore[arg-type]

    accuracy = (
        of("chunked", output=2e-3, dq=3e-3, dk=None, dv=1e-3),
        of("sdpa", output=1e-3, dq=2e-3, dk=2e-3, dv=2e-3),
    )
    lines = printed(small_result(passes=("forward", "both"), accuracy=accuracy))
    assert [line.split() for line in lines[-10:-1]] == [
        ["error", "of", "512", "1024"],
        ["chunked", "output", "2.0e-03", "2.00×", "—"],
        ["dq", "3.0e-03", "1.50×", "—"],
        ["dk", "—", "—"],
        ["dv", "1.0e-03", "0.50×", "—"],
        ["sdpa", "output", "1.0e-03", "—"],
        ["dq", "2.0e-03", "—"],
        ["dk", "2.0e-03", "—"],
        ["dv", "2.0e-03", "—"],
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1234")]
)
def test_three_digits(value: float, text: str) -> None:
    assert digits(value) == text
