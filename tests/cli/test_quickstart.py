"""`rebased quickstart` draws, measures and says where everything is."""

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rebased.bench.config import OpsBenchConfig
from rebased.cli import quickstart
from rebased.cli.app import app


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    config = OpsBenchConfig(
        lengths=(8, 16), num_heads=1, feature_dim=2, head_dim=2, passes=("both",), min_repetitions=1, min_seconds=0
    )
    monkeypatch.setattr(quickstart, "quickstart_config", lambda: config)


@pytest.mark.usefixtures("tiny")
def test_writes_figure_and_numbers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["quickstart", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {"figure2.png", "figure2.svg", "bench-ops.json"}
    for path in out.iterdir():
        assert f"wrote {path}" in result.output
    assert "growth" in result.output
    assert json.loads((out / "bench-ops.json").read_text())["config"]["lengths"] == [8, 16]


def test_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "rebased[figures]" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("cuda", [False, True], ids=["cpu", "cuda"])
def test_takes_the_gpu_if_there_is_one(cuda: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    config = quickstart.quickstart_config()
    assert config.device == ("cuda" if cuda else "cpu")
    assert config.passes == ("both",)
    assert ("triton" in config.backends) == cuda
