"""`rebased` and `rebased bench ops`: what they print, write and refuse."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import rebased
from commands import run
from rebased.analysis.evaluation import EvaluationConfig
from rebased.bench.config import OpsBenchConfig
from rebased.bench.decode_results import DecodeBenchConfig
from rebased.bench.lm_generate_results import GenerateBenchConfig
from rebased.bench.lm_train_results import TrainBenchConfig
from rebased.bench.mixer_results import MixerBenchConfig
from rebased.bench.mqar_results import MqarBenchConfig
from rebased.bench.verify import WrongBackendError
from rebased.cli import bench_ops, main
from rebased.cli.app import app
from rebased.training.language.config import LanguageRunConfig, RunOptions

_SIZES = {"lengths": "16,32", "num-heads": 2, "feature-dim": 4, "head-dim": 8}
_SPEED = {"threads": 1, "min-repetitions": 1, "min-seconds": 0}
TINY = ["bench", "ops", *(f"--{name}={value}" for name, value in (_SIZES | _SPEED).items())]


def test_version() -> None:
    status, said = run("--version")
    assert status == 0
    assert said == f"rebased {rebased.__version__}"


def test_help_names_the_commands() -> None:
    _, said = run("--help")
    assert "bench" in said
    assert "quickstart" in said


@pytest.mark.parametrize(
    ("command", "configs", "others"),
    [
        (["bench", "decode"], [DecodeBenchConfig], {"seed"}),
        (["bench", "lm"], [GenerateBenchConfig, TrainBenchConfig], {"seed"}),
        (["bench", "mixers"], [MixerBenchConfig], {"seed"}),
        (["bench", "mqar"], [MqarBenchConfig], set()),
        (["bench", "ops"], [OpsBenchConfig], {"seed"}),
        (["lm", "eval"], [EvaluationConfig], set()),
        (["lm", "train"], [LanguageRunConfig, RunOptions], {"model", "changes", "wandb_project"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and isinstance(value[0], str) else "",
)
def test_options_have_the_names_that_messages_have(command: list[str], configs: list[Any], others: set[str]) -> None:
    """`--lr` was refused as learning_rate. ``others`` are no options, or have messages that fit another name."""
    found: Any = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]
    options = {option.removeprefix("--").replace("-", "_") for each in found.params for option in each.opts}
    assert {field.name for config in configs for field in dataclasses.fields(config)} - options == others


def test_bench_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "new" / "ops.json"
    status, said = run(*TINY, "--passes", "forward,both", "--max-reference-length", "16", "--out", str(out))
    assert status == 0
    for word in ("length", "chunked", "reference", "sdpa", "growth", "forward + backward", "wrote"):
        assert word in said
    assert "reference skipped at 32: longer than max_reference_length=16" in said
    data = json.loads(out.read_text())
    assert data["config"]["passes"] == ["forward", "both"]
    assert data["config"]["lengths"] == [16, 32]
    assert len(data["measurements"]) == 12


def test_bench_takes_chosen_backends() -> None:
    status, said = run(*TINY, "--backends", "chunked", "--dtype", "float64")
    assert status == 0
    assert "reference" not in said
    assert "float64, B=1 H=2 F=4 D=8" in said


def test_bench_of_fixed_tokens_with_peers_and_errors() -> None:
    shape = ["--tokens", "64", "--sdpa-heads", "3", "--sdpa-head-dim", "5"]
    status, said = run(*TINY, *shape, "--backends", "chunked", "--peers", "all", "--accuracy")
    assert status == 0
    assert "float32, 64 tokens H=2 F=4 D=8, SDPA 3 heads of 5" in said
    assert "parallel_rebased skipped at 16, 32: needs a CUDA device" in said
    assert "relative RMS error against float64" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "device='tpu' is unknown; it may be 'cpu', 'cuda'"),
        (["--device", "cuda"], "device='cuda' was asked for, but torch sees no CUDA device"),
        (["--dtype", "int8"], "dtype='int8' is unknown; it may be 'float32', 'float64', 'bfloat16', 'float16'"),
        (["--backends", "chunked,magic"], "backends='magic' is unknown; it may be"),
        (["--lengths", "512,0"], "lengths=0 must be at least 1"),
        (["--lengths", "512,many"], "lengths='512,many' is not a list of integers"),
        (["--lengths", ","], "lengths is empty"),
        (["--passes", "backward"], "passes='backward' is unknown; it may be 'forward', 'both'"),
        (["--peers", "magic"], "peers='magic' is unknown; it may be 'parallel_rebased'"),
        (["--tokens", "8192", "--batch-size", "2"], "tokens=8192 and batch_size=2 exclude each other"),
        (["--tokens", "1000"], "tokens=1000 is no multiple of the length 512"),
        (["--threads", "0"], "threads=0 must be at least 1"),
        (["--batch-size", "-2"], "batch_size=-2 must be at least 1"),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) else "",
)
def test_bad_values_end_before_any_work(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench_ops, "run_ops_bench", lambda *_, **__: pytest.fail("work was begun"))
    status, said = run("bench", "ops", *arguments)
    assert status == 2
    assert message in said
    assert "Traceback" not in said


def test_unwritable_out_ends_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ops, "run_ops_bench", lambda *_, **__: pytest.fail("work was begun"))
    (tmp_path / "file").write_text("")
    status, said = run(*TINY, "--out", str(tmp_path / "file" / "ops.json"))
    assert status == 1
    assert "error: cannot make the folder" in said


def test_refused_backend_ends_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise WrongBackendError("backend 'chunked' is not timed because it is wrong")

    monkeypatch.setattr(bench_ops, "run_ops_bench", refuse)
    status, said = run(*TINY)
    assert status == 1
    assert "error: backend 'chunked' is not timed because it is wrong" in said


@pytest.mark.parametrize("absent", ["typer", "rich"])
def test_absent_extra_is_named(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    for module in [name for name in sys.modules if name.startswith("rebased.cli.")]:
        monkeypatch.delitem(sys.modules, module)
    for module in [name for name in sys.modules if name.startswith(f"{absent}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(SystemExit, match=f"needs {absent}: pip install typer rich"):
        main()


def test_a_bench_stopped_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_ops, "run_ops_bench", stop)
    assert run(*TINY) == (130, "")


def test_stopped_by_hand_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "rebased.cli.app":
                raise KeyboardInterrupt

    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    monkeypatch.delitem(sys.modules, "rebased.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Stopping, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_main_runs_the_application(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    monkeypatch.setattr(sys, "argv", ["rebased", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("rebased ")
