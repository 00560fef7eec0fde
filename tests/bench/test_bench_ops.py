"""The engine of `rebased bench ops`: what it measures, skips, refuses and works out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rebased.bench import cells, ops
from rebased.bench.candidates import Inputs, build_inputs
from rebased.bench.config import OpsBenchConfig
from rebased.bench.ops import run_ops_bench
from rebased.bench.rates import Rates
from rebased.bench.results import OpsBenchResult
from rebased.bench.timing import Timing
from rebased.bench.verify import WrongBackendError
from rebased.ops import kernel_attention

RATES = Rates(bytes_per_second=1e9, flops_per_second=1e12)


def tiny(**changes: Any) -> OpsBenchConfig:
    sizes: dict[str, Any] = {"lengths": (16, 32), "num_heads": 2, "feature_dim": 4, "head_dim": 8, "threads": 1}
    return OpsBenchConfig(
        **(sizes | {"backends": ("chunked", "reference"), "min_repetitions": 2, "min_seconds": 0} | changes)
    )


@pytest.fixture
def known_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "measure_rates", lambda device, dtype: RATES)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, known_rates: None) -> None:
    """Costs by formula: SDPA and reference T² ns and T² bytes, chunked T µs and 8T bytes; backward takes as long."""

    def seconds(candidate: str, length: int, passes: str) -> float:
        forward = length * 1e-6 if candidate == "chunked" else length**2 * 1e-9
        return forward if passes == "forward" else 2 * forward

    def peak_memory(call: Any, *, device: torch.device) -> int:
        candidate, length, _ = call()
        return 8 * length if candidate == "chunked" else length**2

    monkeypatch.setattr(ops, "check_backend", lambda backend, **options: 0.0)
    monkeypatch.setattr(cells, "build_attend", lambda candidate, config: candidate)
    monkeypatch.setattr(cells, "build_call", lambda attend, inputs, passes: lambda: (attend, inputs.q.shape[1], passes))
    monkeypatch.setattr(cells, "time_call", lambda call, **options: Timing.from_samples([seconds(*call())]))
    monkeypatch.setattr(cells, "peak_memory", peak_memory)


@pytest.mark.usefixtures("known_rates")
@pytest.mark.parametrize("passes", [("forward",), ("both",), ("forward", "both")], ids="+".join)
def test_measures_every_candidate_at_every_length(passes: tuple[str, ...]) -> None:
    config = tiny(passes=passes, tokens=64)
    said: list[str] = []
    threads = torch.get_num_threads()
    result = run_ops_bench(config, progress=said.append)
    assert [(each.length, each.candidate, each.passes) for each in result.measurements] == [
        (length, candidate, each)
        for length in (16, 32)
        for candidate in ("chunked", "reference", "sdpa")
        for each in passes
    ]
    for each in result.measurements:
        assert each.skipped is None
        assert each.timing is not None
        assert each.timing.repetitions >= 2
        assert each.peak_bytes is not None
        assert each.peak_bytes >= 4 * 2 * 8 * 64  # the output, or v's gradient, of 64 tokens in all
        assert each.speedup_over_sdpa is not None
        assert (each.limit_fraction is None) == (each.candidate == "sdpa")
    assert result.errors.keys() == {"chunked", "reference"}
    assert result.environment.threads == 1
    assert torch.get_num_threads() == threads
    assert len(said) == 2 + 1 + 6
    assert result.accuracy == ()


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
def test_passes_are_compared_among_themselves() -> None:
    result = run_ops_bench(tiny(lengths=(500, 1000), passes=("forward", "both")))
    assert result.at("chunked", 500, "forward").speedup_over_sdpa == pytest.approx(0.5)
    assert result.at("chunked", 500, "both").speedup_over_sdpa == pytest.approx(0.5)
    limits = {(limit.length, limit.passes): limit.seconds for limit in result.limits}
    assert limits.keys() == {(500, "forward"), (500, "both"), (1000, "forward"), (1000, "both")}
    assert result.at("chunked", 500, "both").limit_fraction == pytest.approx(limits[500, "both"] / 1e-3)
    assert [(each.candidate, each.passes) for each in result.growth][:2] == [
        ("chunked", "forward"),
        ("chunked", "both"),
    ]


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


def refuse_reference(error: Exception) -> Any:
    def build_attend(candidate: str, config: OpsBenchConfig) -> Any:
        def fail(*tensors: Any) -> Any:
            raise error

        return fail if candidate == "reference" else lambda q, k, v: v

    return build_attend


@pytest.mark.usefixtures("known_rates")
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError(), "out of device memory"),
        (AssertionError("only up to 16\nand more"), "AssertionError: only up to 16"),
        (RuntimeError(), "RuntimeError: no message"),
    ],
    ids=["memory", "message", "none"],
)
def test_failure_is_recorded_as_skipped(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "build_attend", refuse_reference(error))
    result = run_ops_bench(tiny(passes=("forward", "both")))
    assert {
        result.at("reference", length, passes).skipped for length in (16, 32) for passes in ("forward", "both")
    } == {reason}
    assert result.at("sdpa", 32, "forward").timing is not None
    assert result.at("chunked", 32, "forward").timing is not None
    # its output does not depend on q and k: backward alone fails, and alone is empty
    assert result.at("chunked", 32, "both").skipped is not None


@pytest.mark.usefixtures("known_rates")
def test_absent_peer_is_recorded_as_skipped() -> None:
    result = run_ops_bench(tiny(peers=("parallel_rebased", "fused_chunk_based"), max_peer_length=16))
    assert result.at("parallel_rebased", 16).skipped == "needs a CUDA device"
    assert result.at("fused_chunk_based", 32).skipped == "longer than max_peer_length=16"


def test_nothing_is_timed_if_a_backend_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(backend: str, **options: Any) -> float:
        raise WrongBackendError(backend)

    def time_call(*arguments: Any, **options: Any) -> Timing:
        pytest.fail("a wrong backend was timed")

    monkeypatch.setattr(ops, "check_backend", refuse)
    monkeypatch.setattr(cells, "time_call", time_call)
    with pytest.raises(RuntimeError, match="chunked"):
        run_ops_bench(tiny())


@pytest.mark.usefixtures("simulated")
def test_backend_that_cannot_be_checked_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(backend: str, **options: Any) -> float:
        if backend == "reference":
            raise ValueError("takes feature_dim up to 3")
        return 0.0

    monkeypatch.setattr(ops, "check_backend", check)
    result = run_ops_bench(tiny())
    assert result.at("reference", 16).skipped == "ValueError: takes feature_dim up to 3"
    assert result.at("chunked", 16).timing is not None
    assert result.errors == {"chunked": 0.0}


@pytest.mark.usefixtures("known_rates")
def test_errors_at_the_sizes_that_are_timed() -> None:
    result = run_ops_bench(tiny(accuracy=True, passes=("both",), tokens=64))
    assert [(each.candidate, each.length) for each in result.accuracy] == [
        (candidate, length) for length in (16, 32) for candidate in ("chunked", "reference", "sdpa")
    ]
    for each in result.accuracy:
        assert (each.sequences, each.heads) == (64 // each.length, 2)
        assert each.errors.keys() == {"output", "dq", "dk", "dv"}
        assert max(each.errors.values()) < 1e-5


@pytest.mark.usefixtures("known_rates")
@pytest.mark.parametrize("factor", [1.001, float("nan")])
def test_wrong_at_one_length_is_not_timed_there(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def build_attend(candidate: str, config: OpsBenchConfig) -> Any:
        def attend(q: Any, k: Any, v: Any) -> Any:
            out = kernel_attention(q, k, v, backend="chunked")
            return out * factor if q.shape[1] == 32 and candidate == "chunked" else out

        return attend

    monkeypatch.setattr(cells, "build_attend", build_attend)
    result = run_ops_bench(tiny(accuracy=True, backends=("chunked",)))
    assert result.at("chunked", 16).timing is not None
    assert "backend 'chunked' at length 32 is not timed because it is wrong" in str(result.at("chunked", 32).skipped)
    assert result.at("sdpa", 32).timing is not None  # not ours to judge, here computing something else altogether
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.usefixtures("known_rates")
def test_errors_that_cannot_be_measured_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a candidate that is not ours: it is timed nonetheless."""
    original = cells.measure_accuracy

    def measure_accuracy(candidate: str, *arguments: Any, **options: Any) -> Any:
        if candidate == "sdpa":
            raise RuntimeError("no float64 here")
        return original(candidate, *arguments, **options)

    monkeypatch.setattr(cells, "measure_accuracy", measure_accuracy)
    result = run_ops_bench(tiny(accuracy=True, lengths=(16,)))
    assert [each.candidate for each in result.accuracy] == ["chunked", "reference"]
    assert result.at("sdpa", 16).timing is not None
    assert caplog.messages == ["no errors of sdpa at length 16: RuntimeError: no float64 here"]


def test_absent_device_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device"):
        run_ops_bench(tiny(device="cuda"), progress=lambda said: pytest.fail("work was begun"))


@pytest.mark.usefixtures("simulated")
def test_json_round_trip(tmp_path: Path) -> None:
    result = run_ops_bench(tiny(max_reference_length=16, passes=("forward", "both")))
    path = tmp_path / "new" / "result.json"
    result.write(path)
    data = json.loads(path.read_text())
    assert data == result.to_json()
    assert OpsBenchResult.from_json(data) == result
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("place", "name"),
    [((), "title"), (("config",), "backward"), (("measurements", 0), "speed"), (("measurements", 0, "timing"), "mean")],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_json_is_read_strictly(place: tuple[Any, ...], name: str) -> None:
    data = run_ops_bench(tiny()).to_json()
    record = data
    for key in place:
        record = record[key]
    record[name] = None
    with pytest.raises(ValueError, match=name):
        OpsBenchResult.from_json(data)
    del record[name]
    absent = list(record)[-1]
    del record[absent]
    with pytest.raises((ValueError, KeyError), match=absent):
        OpsBenchResult.from_json(data)


@pytest.mark.usefixtures("simulated")
def test_measurement_outside_the_run() -> None:
    result = run_ops_bench(tiny())
    for place in [("chunked", 17, None), ("chunked", 16, "both"), ("triton", 16, None)]:
        with pytest.raises(KeyError):
            result.at(*place)


def test_inputs_lie_as_each_candidate_likes_it() -> None:
    config = tiny(tokens=64, sdpa_heads=3, sdpa_head_dim=5, peers=("parallel_based",))
    ours, sdpa, peer = (build_inputs(name, 32, config) for name in ("chunked", "sdpa", "parallel_based"))
    assert (ours.q.shape, ours.v.shape) == ((2, 32, 2, 4), (2, 32, 2, 8))
    assert peer.q.shape == ours.q.shape
    assert sdpa.q.shape == sdpa.v.shape == (2, 32, 3, 5)
    assert ours.q.is_contiguous()
    for inputs in (sdpa, peer):
        assert all(x.transpose(1, 2).is_contiguous() for x in vars(inputs).values())
    assert isinstance(ours, Inputs)
    assert ours.grad_output[:, :16].eq(0).all()
    assert ours.grad_output[:, 16:].ne(0).all()


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "graphs"), [("float32", False), ("bfloat16", True)])
def test_runs_on_a_gpu(dtype: str, graphs: bool) -> None:
    config = tiny(
        device="cuda",
        dtype=dtype,
        lengths=(64, 256),
        tokens=512,
        passes=("forward", "both"),
        accuracy=True,
        graphs=graphs,
        feature_dim=16,
        backends=("reference", "chunked", "triton"),
    )
    result = run_ops_bench(config)
    assert all(each.timing is not None for each in result.measurements)
    assert all(each.launch_seconds for each in result.measurements)
    assert result.environment.device == "cuda"
    assert len(result.accuracy) == 8
