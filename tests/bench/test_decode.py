"""The engine of `rebased bench decode` and its file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rebased.bench import decode
from rebased.bench.decode import run_decode_bench
from rebased.bench.decode_results import DecodeBenchConfig, DecodeBenchResult
from rebased.bench.timing import Timing
from rebased.bench.verify import WrongBackendError
from rebased.replay import Replay


def tiny(**changes: Any) -> DecodeBenchConfig:
    sizes: dict[str, Any] = {"batch_size": 2, "num_heads": 3, "feature_dim": 4, "head_dim": 5, "contexts": (8, 16)}
    shape = {"sdpa_heads": 2, "sdpa_head_dim": 8, "threads": 1, "min_repetitions": 1, "min_seconds": 0}
    return DecodeBenchConfig(**(sizes | shape | changes))


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_measures_the_state_once_and_sdpa_at_every_context(dtype: str) -> None:
    said: list[str] = []
    result = run_decode_bench(tiny(dtype=dtype), progress=said.append)
    assert [(each.candidate, each.context) for each in result.measurements] == [
        ("state", None),
        ("sdpa", 8),
        ("sdpa", 16),
    ]
    assert all(each.timing is not None and each.slowdown is not None for each in result.measurements)
    assert result.measurements[0].slowdown == 1
    assert len(said) == 4


def test_what_is_held_by_hand() -> None:
    """A state of 10 features and 5 values in float32 with residuals of 2 bytes and counts; caches of 2 heads of 8."""
    state, short, long = (each.held_bytes for each in run_decode_bench(tiny()).measurements)
    assert state == 2 * 3 * 10 * (5 + 1) * (4 + 2) + 2 * 8
    assert (short, long) == (2 * 2 * 2 * 8 * 8 * 4, 2 * 2 * 2 * 16 * 8 * 4)


def test_sdpa_sees_the_new_token() -> None:
    step, _ = decode._sdpa_step(1, tiny())
    out = step()
    generator = torch.Generator().manual_seed(0)
    _, _, v = (torch.randn(2, 2, 1, 8, generator=generator) for _ in range(3))
    torch.testing.assert_close(out, v)  # with one place in the cache, it alone


def test_the_state_takes_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are made in place: each one is a token more."""
    seen = []
    original = decode.kernel_attention_step

    def watch(*arguments: Any, **options: Any) -> Any:
        out, state = original(*arguments, **options)
        seen.append(int(state.count[0]))
        return out, state

    monkeypatch.setattr(decode, "kernel_attention_step", watch)
    step, _ = decode._state_step(None, tiny())
    with torch.no_grad():
        step()
        step()
    assert seen == [1, 2]


def test_ratio_to_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2.0, 3.0, 8.0])
    monkeypatch.setattr(decode, "time_call", lambda call, **options: Timing.from_samples([next(times)]))
    assert [each.slowdown for each in run_decode_bench(tiny()).measurements] == [1.0, 1.5, 4.0]


def test_failure_is_recorded_as_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: int | None, config: DecodeBenchConfig) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(decode, "_sdpa_step", fail)
    state, *cached = run_decode_bench(tiny()).measurements
    assert state.timing is not None
    assert [each.skipped for each in cached] == ["out of device memory"] * 2


def test_wrong_step_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: Any) -> float:
        raise WrongBackendError("wrong")

    monkeypatch.setattr(decode, "check_step", refuse)
    monkeypatch.setattr(decode, "time_call", lambda *_, **__: pytest.fail("a wrong step was timed"))
    with pytest.raises(WrongBackendError):
        run_decode_bench(tiny())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("device", "tpu", "device='tpu' is unknown"),
        ("dtype", "int8", "dtype='int8' is unknown"),
        ("backend", "chunked", "backend='chunked' is unknown; it may be 'auto', 'torch', 'triton'"),
        ("contexts", (), "contexts is empty"),
        ("batch_size", 0, "batch_size=0"),
        ("min_seconds", -1.0, "min_seconds=-1"),
        ("graphs", True, "graphs=True needs device='cuda', got 'cpu'"),
    ],
)
def test_bad_value(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**{field: value})


def test_json_round_trip(tmp_path: Path) -> None:
    result = run_decode_bench(tiny())
    result.write(tmp_path / "decode.json")
    data = json.loads((tmp_path / "decode.json").read_text())
    assert DecodeBenchResult.from_json(data) == result
    data["measurements"][1]["context_length"] = 1
    with pytest.raises(ValueError, match="context_length"):
        DecodeBenchResult.from_json(data)


@pytest.mark.gpu
def test_recorded_steps_do_the_same() -> None:
    state = torch.zeros((), device="cuda")
    replay = Replay(lambda: state.add_(1), torch.device("cuda"))
    before = int(state)
    replay()
    replay()
    assert int(state) == before + 2


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
def test_runs_on_a_gpu(graphs: bool) -> None:
    result = run_decode_bench(tiny(device="cuda", dtype="bfloat16", graphs=graphs, feature_dim=16))
    assert [each.skipped for each in result.measurements] == [None] * 3
