"""The engine of `rebased bench ops`: what it measures, skips, refuses and works out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rebased.bench import ops
from rebased.bench.config import OpsBenchConfig
from rebased.bench.ops import run_ops_bench
from rebased.bench.results import OpsBenchResult
from rebased.bench.timing import Timing
from rebased.bench.verify import WrongBackendError


def tiny(**changes: Any) -> OpsBenchConfig:
    sizes: dict[str, Any] = {"lengths": (16, 32), "num_heads": 2, "feature_dim": 4, "head_dim": 8, "threads": 1}
    return OpsBenchConfig(
        **(sizes | {"backends": ("chunked", "reference"), "min_repetitions": 2, "min_seconds": 0} | changes)
    )


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs by formula: SDPA and reference T² ns and T² bytes, chunked T µs and 8T bytes."""

    def seconds(candidate: str, length: int) -> float:
        return length * 1e-6 if candidate == "chunked" else length**2 * 1e-9

    def peak_memory(call: Any, *, device: torch.device) -> int:
        candidate, length = call()
        return 8 * length if candidate == "chunked" else length**2

    monkeypatch.setattr(ops, "check_backend", lambda backend, **options: 0.0)
    monkeypatch.setattr(ops, "build_call", lambda candidate, length, config: lambda: (candidate, length))
    monkeypatch.setattr(ops, "time_call", lambda call, **options: Timing.from_samples([seconds(*call())]))
    monkeypatch.setattr(ops, "peak_memory", peak_memory)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_measures_every_candidate_at_every_length(backward: bool) -> None:
    config = tiny(backward=backward)
    said: list[str] = []
    threads = torch.get_num_threads()
    result = run_ops_bench(config, progress=said.append)
    assert [(each.length, each.candidate) for each in result.measurements] == [
        (length, candidate) for length in (16, 32) for candidate in ("chunked", "reference", "sdpa")
    ]
    for each in result.measurements:
        assert each.timing is not None
        assert each.timing.repetitions >= 2
        assert each.peak_bytes is not None
        assert each.peak_bytes >= 4 * 2 * 8 * each.length  # the output, or v's gradient
        assert each.speedup_over_sdpa is not None
    assert result.errors.keys() == {"chunked", "reference"}
    assert result.environment.threads == 1
    assert torch.get_num_threads() == threads
    assert len(said) == 2 + 6


@pytest.mark.usefixtures("simulated")
def test_ratios_and_growth() -> None:
    result = run_ops_bench(tiny(lengths=(500, 1000, 4000), max_reference_length=1000))
    assert [result.at("chunked", length).speedup_over_sdpa for length in (500, 1000, 4000)] == pytest.approx(
        [0.5, 1, 4]
    )
    assert result.at("sdpa", 500).speedup_over_sdpa == 1
    chunked, reference, sdpa = result.growth
    assert (chunked.time_exponent, chunked.memory_exponent) == pytest.approx((1, 1))
    assert (sdpa.time_exponent, sdpa.memory_exponent) == pytest.approx((2, 2))
    assert reference.time_exponent == pytest.approx(2)  # of the two lengths it ran at


@pytest.mark.usefixtures("simulated")
def test_too_long_is_recorded_as_skipped() -> None:
    result = run_ops_bench(tiny(lengths=(10, 100, 1000), max_reference_length=10, max_sdpa_length=100))
    skipped = {(each.candidate, each.length): each.skipped for each in result.measurements if each.skipped}
    assert skipped == {
        ("reference", 100): "longer than max_reference_length=10",
        ("reference", 1000): "longer than max_reference_length=10",
        ("sdpa", 1000): "longer than max_sdpa_length=100",
    }
    assert result.at("chunked", 1000).timing is not None
    assert result.at("chunked", 1000).speedup_over_sdpa is None
    assert result.growth[1].time_exponent is None  # one length is no trend


@pytest.mark.usefixtures("simulated")
def test_out_of_memory_is_recorded_as_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_call(candidate: str, length: int, config: OpsBenchConfig) -> Any:
        if candidate == "reference":
            raise torch.OutOfMemoryError
        return lambda: (candidate, length)

    monkeypatch.setattr(ops, "build_call", build_call)
    result = run_ops_bench(tiny())
    assert result.at("reference", 16).skipped == "out of device memory"
    assert result.at("sdpa", 32).timing is not None


def test_nothing_is_timed_if_a_backend_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(backend: str, **options: Any) -> float:
        raise WrongBackendError(backend)

    def time_call(*arguments: Any, **options: Any) -> Timing:
        pytest.fail("a wrong backend was timed")

    monkeypatch.setattr(ops, "check_backend", refuse)
    monkeypatch.setattr(ops, "time_call", time_call)
    with pytest.raises(RuntimeError, match="chunked"):
        run_ops_bench(tiny())


def test_absent_device_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device"):
        run_ops_bench(tiny(device="cuda"), progress=lambda said: pytest.fail("work was begun"))


@pytest.mark.usefixtures("simulated")
def test_json_round_trip(tmp_path: Path) -> None:
    result = run_ops_bench(tiny(max_reference_length=16))
    path = tmp_path / "new" / "result.json"
    result.write(path)
    data = json.loads(path.read_text())
    assert data.keys() == {"config", "environment", "errors", "other_cpus", "measurements", "growth"}
    assert data == result.to_json()
    assert OpsBenchResult.from_json(data) == result
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]


@pytest.mark.usefixtures("simulated")
def test_measurement_outside_the_run() -> None:
    with pytest.raises(KeyError):
        run_ops_bench(tiny()).at("chunked", 17)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_runs_on_a_gpu(dtype: str) -> None:
    result = run_ops_bench(tiny(device="cuda", dtype=dtype, backward=True))
    assert all(each.timing is not None for each in result.measurements)
    assert result.environment.device == "cuda"
