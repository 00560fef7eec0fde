"""`rebased bench decode`: what it prints, writes and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from commands import run
from rebased.bench import decode
from rebased.bench.verify import WrongBackendError
from rebased.cli import bench_decode
from rebased.cli.app import app

_SIZES = {"contexts": "8,16", "batch-size": 2, "num-heads": 3, "feature-dim": 4, "head-dim": 5, "sdpa-heads": 2}
_SPEED = {"threads": 1, "min-repetitions": 1, "min-seconds": 0}
TINY = ["bench", "decode", *(f"--{name}={value}" for name, value in (_SIZES | _SPEED).items())]


def test_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    out = tmp_path / "new" / "decode.json"
    result = CliRunner().invoke(app, [*TINY, "--out", str(out)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[1].split()[:2] == ["kernel_attention_step", "any"]
    assert [line.split()[4] for line in lines[2:4]] == ["8", "16"]
    assert "called from Python" in result.output
    assert json.loads(out.read_text())["config"]["contexts"] == [8, 16]


def test_says_what_is_skipped_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state's step is of any context, so no place is named."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no room")

    monkeypatch.setattr(decode, "time_call", fail)
    result = CliRunner().invoke(app, TINY)
    assert result.exit_code == 0, result.output
    assert [line for line in result.output.splitlines() if "skipped" in line] == [
        "kernel_attention_step skipped: RuntimeError: no room",
        "SDPA with a cache skipped at 8: RuntimeError: no room",
        "SDPA with a cache skipped at 16: RuntimeError: no room",
    ]


def test_graphs_are_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default they are used there, and only there."""
    asked: list[Any] = []

    def run(config: Any, **_: Any) -> Any:
        asked.append(config.graphs)
        raise WrongBackendError("enough")

    monkeypatch.setattr(bench_decode, "run_decode_bench", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for arguments in ([], ["--device", "cuda"], ["--device", "cuda", "--no-graphs"]):
        result = CliRunner().invoke(app, [*TINY, *arguments])
        assert result.exit_code == 1
        assert "error: enough" in result.output
    assert asked == [False, True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--contexts", "8,many"], "contexts='8,many' is not a list"),
        (["--backend", "magic"], "backend='magic' is unknown"),
        (["--graphs"], "graphs=True needs device='cuda'"),
        (["--device", "cuda"], "torch sees no CUDA device"),
    ],
    ids=" ".join,
)
def test_bad_values_end_before_any_work(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench_decode, "run_decode_bench", lambda *_, **__: pytest.fail("work was begun"))
    status, said = run(*TINY, *arguments)
    assert status == 2
    assert message in said
