"""`rebased bench lm`: what it prints, writes and refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import commands
import rebased.hf
from rebased.bench.lm_generate_results import GenerateBenchConfig, GenerateBenchResult
from rebased.bench.lm_train_results import TrainBenchConfig, TrainBenchResult
from rebased.cli import bench_lm
from rebased.cli.app import app
from rebased.hf import presets

LM = ["bench", "lm", "--models=tiny-attention,tiny", "--threads=1", "--repetitions=1"]
GENERATE = [*LM, "--generate", "--contexts=8,20", "--batch-size=2", "--new-tokens=3"]
TRAIN = [*LM, "--train", "--lengths=8,16", "--tokens=32"]


@pytest.fixture(autouse=True)
def _tiny_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of two tokens one is 0, which also pads.
    sizes = {"vocab_size": 2, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    for name, mixers in (("tiny-attention", ["attention"] * 2), ("tiny", ["short_conv", "rebased"])):
        monkeypatch.setitem(presets.PRESETS, name, sizes | {"layer_types": mixers})


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, terminal_width=200)
    assert result.exit_code == 0, result.output
    return result.output


def test_generates(tmp_path: Path) -> None:
    out = tmp_path / "new" / "lm.json"
    lines = run(*GENERATE, "--out", str(out)).splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["8", "tiny-attention"],
        ["8", "tiny"],
        ["20", "tiny-attention"],
        ["20", "tiny"],
    ]
    result = GenerateBenchResult.from_json(json.loads(out.read_text()))
    short, ours, long, ours_later = result.measurements
    assert short.speedup == long.speedup == 1
    assert short.timing is not None
    assert short.tokens_per_second == pytest.approx(2 * 3 / short.timing.median_seconds)
    # Two layers, of two sequences: keys and values of 16 float32, and the counts of tokens.
    assert [each.held_bytes for each in (short, long)] == [2 * 2 * (2 * 16 * 4 * S + 8) for S in (8, 20)]
    assert ours.held_bytes == ours_later.held_bytes


def test_trains(tmp_path: Path) -> None:
    out = tmp_path / "lm.json"
    output = run(*TRAIN, "--out", str(out))
    assert "32 tokens a step, float32, not compiled" in output
    result = TrainBenchResult.from_json(json.loads(out.read_text()))
    assert [(each.model, each.length, each.batch_size) for each in result.measurements] == [
        ("tiny-attention", 8, 4),
        ("tiny", 8, 4),
        ("tiny-attention", 16, 2),
        ("tiny", 16, 2),
    ]
    for each in result.measurements:
        assert each.timing is not None
        assert each.tokens_per_second == pytest.approx(32 / each.timing.median_seconds)
        assert each.parameter_flops == pytest.approx(6 * each.parameters * each.tokens_per_second)
    first, _, longer, _ = result.measurements
    assert longer.parameters - first.parameters == 8 * 16  # the position table


def test_what_fails_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    original, failing = torch.optim.AdamW, list[int]()

    def fail(*inputs: Any, **options: Any) -> Any:
        failing.append(1)
        if len(failing) == 2:
            raise RuntimeError("no room")
        return original(*inputs, **options)

    monkeypatch.setattr(torch.optim, "AdamW", fail)
    output = run(*TRAIN)
    assert "tiny skipped at 8: RuntimeError: no room" in output
    assert len(failing) == 4


@pytest.mark.parametrize(
    ("arguments", "kind"), [(GENERATE, GenerateBenchResult), (TRAIN, TrainBenchResult)], ids=["generate", "train"]
)
def test_a_model_that_cannot_be_built_is_skipped(
    arguments: list[str], kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to end the bench, and what was measured before it was lost."""
    original, built = rebased.hf.RebasedForCausalLM, list[int]()

    def build(config: Any) -> Any:
        built.append(1)
        if len(built) == 2:
            raise torch.OutOfMemoryError
        return original(config)

    monkeypatch.setattr(rebased.hf, "RebasedForCausalLM", build)
    out = tmp_path / "lm.json"
    assert "tiny skipped at 8: out of device memory" in run(*arguments, "--out", str(out))
    measurements = kind.from_json(json.loads(out.read_text())).measurements
    assert [each.skipped is None for each in measurements] == [True, False, True, True]
    assert [each.parameters is None for each in measurements] == [False, True, False, False]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--generate"], GenerateBenchConfig()),
        (["--train"], TrainBenchConfig()),
        (["--generate", "--repetitions=7", "--batch-size=2"], GenerateBenchConfig(repetitions=7, batch_size=2)),
        (["--train", "--compile", "--lengths=8"], TrainBenchConfig(compile=True, lengths=(8,))),
    ],
    ids=["generate", "train", "generate, some given", "train, some given"],
)
def test_defaults_are_the_configs(arguments: list[str], expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(bench_lm, "run_bench", lambda _, config, *__: asked.append(config))
    run("bench", "lm", *arguments)
    assert asked == [expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (LM, "give --generate or --train"),
        ([*GENERATE, "--train"], "give --generate or --train"),
        ([*GENERATE, "--models", "gpt"], "models='gpt' is unknown"),
        ([*GENERATE, "--contexts", "8,many"], "contexts='8,many' is not a list"),
        ([*GENERATE, "--contexts", "0"], "contexts=0 must be at least 1"),
        ([*GENERATE, "--new-tokens", "0"], "new_tokens=0"),
        ([*GENERATE, "--models", ","], "models is empty; it may hold attention"),
        ([*TRAIN, "--models", ","], "models is empty; it may hold attention"),
        ([*GENERATE, "--models", "tiny,tiny"], "models=tiny,tiny names an entry twice"),
        ([*TRAIN, "--models", "tiny,tiny"], "models=tiny,tiny names an entry twice"),
        ([*TRAIN, "--lengths", "0"], "lengths"),
        ([*TRAIN, "--lengths", "100", "--tokens", "150"], "tokens=150 is no multiple of the length 100"),
        ([*TRAIN, "--lengths", "8,64"], "tokens=32 is no multiple of the length 64"),
        ([*TRAIN, "--tokens", "0"], "tokens=0"),
        ([*TRAIN, "--device", "cuda"], "torch sees no CUDA device"),
        ([*TRAIN, "--new-tokens", "8"], "--new-tokens goes with --generate, not with --train"),
        ([*TRAIN, "--batch-size", "64"], "--batch-size goes with --generate, not with --train"),
        ([*TRAIN, "--contexts", "8"], "--contexts goes with --generate, not with --train"),
        ([*GENERATE, "--lengths", "8"], "--lengths goes with --train, not with --generate"),
        ([*GENERATE, "--tokens", "8"], "--tokens goes with --train, not with --generate"),
        ([*GENERATE, "--no-compile"], "--compile goes with --train, not with --generate"),
    ],
)
def test_bad_values_end_before_any_work(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("run_generate_bench", "run_train_bench"):
        monkeypatch.setattr(bench_lm, name, lambda *_, **__: pytest.fail("work was begun"))
    status, said = commands.run(*arguments)
    assert status == 2
    assert message in said


@pytest.mark.parametrize("arguments", [GENERATE, TRAIN], ids=["generate", "train"])
def test_without_transformers(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert result.output == "error: a bench of language models needs transformers: pip install transformers\n"
