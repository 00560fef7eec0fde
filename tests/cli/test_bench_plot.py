"""`rebased bench plot`, and the picture that `rebased bench ops` draws itself."""

import json
from pathlib import Path

import pytest

from bench.results_by_hand import small_result
from commands import run
from rebased.cli import bench_ops, bench_plot

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("ops-*.json")), ids=lambda path: path.name)
def test_committed_files_can_be_drawn(path: Path, tmp_path: Path) -> None:
    status, said = run("bench", "plot", path, "--out", tmp_path / "new" / "ops.png")
    assert (status, said.split()[0]) == (0, "wrote")
    assert (tmp_path / "new" / "ops.png").read_bytes().startswith(b"\x89PNG")


def test_ops_draws_what_can_be_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ops, "run_ops_bench", lambda config, **_: small_result(passes=("forward", "both")))
    first, again, numbers = tmp_path / "a" / "x.svg", tmp_path / "b" / "x.svg", tmp_path / "ops.json"
    assert run("bench", "ops", "--figure", first, "--out", numbers)[0] == 0
    assert run("bench", "plot", numbers, "--out", again)[0] == 0
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("command", ["ops", "plot"])
def test_unknown_format_ends_before_any_work(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ops, "run_ops_bench", lambda *_, **__: pytest.fail("work was begun"))
    numbers = tmp_path / "ops.json"
    small_result().write(numbers)
    arguments = ["--figure", "x.docx"] if command == "ops" else [numbers, "--out", "x.docx"]
    status, said = run("bench", command, *arguments)
    assert status == 2
    assert "x.docx must end in .png, .svg, .pdf" in said


def test_absent_matplotlib_ends_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_plot, "find_spec", lambda name: None)
    monkeypatch.setattr(bench_ops, "run_ops_bench", lambda *_, **__: pytest.fail("work was begun"))
    status, said = run("bench", "ops", "--figure", "x.png")
    assert status == 1
    assert "pip install matplotlib" in said


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", json.dumps({"config": {}})], ids=["{}", "[]", "text", "other"])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    status, said = run("bench", "plot", path, "--out", tmp_path / "x.png")
    assert status == 1
    assert "does not hold a result of `rebased bench ops`" in said
