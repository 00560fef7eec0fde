"""The engine of `rebased bench mixers`, its file and its command."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from rebased.bench.mixer_results import MixerBenchConfig, MixerBenchResult
from rebased.bench.mixers import run_mixer_bench
from rebased.cli.app import app
from rebased.layers import MIXERS, Attention


def tiny(**changes: Any) -> MixerBenchConfig:
    sizes: dict[str, Any] = {"mixers": ("short_conv", "attention"), "lengths": (8, 16), "batch_size": 2, "d_model": 16}
    speed = {"threads": 1, "min_repetitions": 1, "min_seconds": 0}
    return MixerBenchConfig(**(sizes | speed | changes))


@pytest.mark.parametrize("passes", ["forward", "both"])
def test_every_mixer_is_measured_beside_the_first(passes: str) -> None:
    names = tuple(MIXERS)
    result = run_mixer_bench(tiny(mixers=names, lengths=(8,), passes=passes), progress=lambda _: None)
    assert [each.mixer for each in result.measurements] == list(names)
    assert [each.skipped for each in result.measurements] == [None] * len(names)
    first = result.measurements[0]
    assert (first.time_ratio, first.memory_ratio) == (1, 1)
    for each in result.measurements:
        assert each.timing is not None
        assert each.peak_bytes is not None
        assert each.memory_ratio == each.peak_bytes / first.peak_bytes


def test_states_are_those_of_the_mixers() -> None:
    result = run_mixer_bench(tiny(), progress=lambda _: None)
    states = {(each.mixer, each.length): each.state_bytes for each in result.measurements}
    assert states["short_conv", 8] == states["short_conv", 16] == 2 * 16 * 4
    assert states["attention", 16] == Attention(16).state_bytes(16)


def test_the_record_has_the_threads_it_ran_on() -> None:
    """Not those that torch is set to before and after."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        result = run_mixer_bench(tiny(lengths=(8,)), progress=lambda _: None)
        assert result.environment.threads == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_mixer_that_fails_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Attention):
        def mix(self, *_: Any) -> Any:
            raise RuntimeError("no such luck")

    monkeypatch.setitem(MIXERS, "attention", Broken)
    result = run_mixer_bench(tiny(lengths=(8,)), progress=lambda _: None)
    assert [each.skipped for each in result.measurements] == [None, "RuntimeError: no such luck"]
    assert result.measurements[1].time_ratio is None


def test_a_wrong_mixer_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Attention):
        """Right in float64 only."""

        def mix(self, x: Any, *rest: Any) -> Any:
            y, state = super().mix(x, *rest)
            return y if x.dtype == torch.float64 else 1.01 * y, state

    monkeypatch.setitem(MIXERS, "attention", Wrong)
    result = run_mixer_bench(tiny(lengths=(8,)), progress=lambda _: None)
    assert result.measurements[1].timing is None
    assert "the error against float64 is 1.0e-02" in (result.measurements[1].skipped or "")


def test_the_file_can_be_read_back(tmp_path: Path) -> None:
    result = run_mixer_bench(tiny(), progress=lambda _: None)
    result.write(tmp_path / "mixers.json")
    assert MixerBenchResult.from_json(json.loads((tmp_path / "mixers.json").read_text())) == result


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"mixers": ("gpt",)}, "mixers='gpt'"),
        ({"lengths": (0,)}, "lengths"),
        ({"passes": "backward"}, "passes"),
        ({"d_model": 0}, "d_model"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_bad_configurations(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        tiny(**changes)


def test_the_command(tmp_path: Path) -> None:
    options = {"mixers": "short_conv,rwkv", "lengths": 8, "batch-size": 2, "d-model": 16, "threads": 1}
    arguments = [f"--{name}={value}" for name, value in (options | {"min-repetitions": 1, "min-seconds": 0}).items()]
    out = tmp_path / "new" / "mixers.json"
    result = CliRunner().invoke(app, ["bench", "mixers", *arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.output.splitlines()[1:3]] == [["short_conv", "8"], ["rwkv", "8"]]
    assert "forward + backward, batch 2, d_model 16" in result.output
    assert json.loads(out.read_text())["config"]["mixers"] == ["short_conv", "rwkv"]
    bad = CliRunner().invoke(app, ["bench", "mixers", "--mixers", "gpt"])
    assert bad.exit_code == 2
    assert "gpt" in bad.output
