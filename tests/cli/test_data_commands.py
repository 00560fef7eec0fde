"""`rebased data`: what it prepares, shows, checks and refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rebased.cli import data_progress
from rebased.cli.app import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "a.jsonl"
    documents = [{"body": f"number {n}", "kind": "[odd]" if n % 2 else "even"} for n in range(10)]
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(path)


def test_from_text_to_a_checked_corpus(tmp_path: Path, source: str) -> None:
    out = str(tmp_path / "new" / "corpus")
    (tmp_path / "b.txt").write_text("held out")
    options = ["--text-field", "body", "--set-field", "kind", "--validation", str(tmp_path / "b.txt")]
    status, said = run("prepare", source, "--out", out, *options)
    assert status == 0, said
    rows = [line.split() for line in said.splitlines()]
    assert rows[1:5] == [
        ["train", "all", "90", "10", "80", "0.89"],
        ["even", "45", "5", "40", "0.89"],
        ["[odd]", "45", "5", "40", "0.89"],
        ["validation", "all", "9", "1", "8", "0.89"],
    ]
    assert run("prepare", source, "--out", out, *options) == (0, said)  # it is there already

    status, shown = run("show", out, "--text", "18")
    assert (status, shown) == (0, said + "\nnumber 0<|endoftext|>number 1<|endoftext|>\n")
    assert run("show", out) == (0, said)

    status, checked = run("check", out)
    assert status == 0
    assert "corpus is whole: 6 files" in checked

    shard = Path(out) / "train-00000.tokens"
    shard.write_bytes(b"\x01" + shard.read_bytes()[1:])
    status, checked = run("check", out)
    assert status == 1
    assert "error: " in checked
    assert "train-00000.tokens is damaged" in checked


def test_nothing_held_out_is_said(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one document")
    status, said = run("prepare", str(tmp_path / "b.txt"), "--out", str(tmp_path / "out"))
    assert status == 0
    assert said.splitlines()[2].split() == ["validation", "all", "0", "0", "0", "—"]
    assert "no document was held out" in said
    _, said = run("prepare", str(tmp_path / "b.txt"), "--out", str(tmp_path / "none"), "--validation-share", "0")
    assert "no document was held out" not in said


def test_files_that_were_left_out_are_said(tmp_path: Path) -> None:
    """Once, and again where the corpus is shown; nothing where all was read."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    (folder / "a.txt").write_text("read")
    _, said = run("prepare", str(folder), "--out", str(tmp_path / "whole"))
    assert "left out" not in said
    (folder / "e.log").write_text("not read")
    _, said = run("prepare", str(folder), "--out", str(tmp_path / "one"))
    assert "note: 1 file was left out (endings that are not known: .log (1))" in said
    for number in range(12):
        (folder / f"README{number}").write_text("not read")
        (folder / f"x.{number}").write_text("not read")
    note = "note: 25 files were left out (endings that are not known: none (12), .0 (1), "
    for command in (["prepare", str(folder), "--out", str(tmp_path / "out")], ["show", str(tmp_path / "out")]):
        status, said = run(*command)
        assert status == 0
        assert note in said
        assert "and 6 others)" in said


def test_progress_where_there_is_no_terminal(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_progress, "_SECONDS", 0.0)
    status, said = run("prepare", source, "--out", str(tmp_path / "out"), "--text-field", "body")
    assert status == 0
    assert f"10 documents, 90 tokens; input 1 of 1: {source}" in said


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["prepare", "nope", "--out", "new"], 1, "source='nope' is neither a file nor a folder"),
        (["prepare", "a.jsonl", "--out", "new"], 1, "--text-field text is not there; there are body, kind"),
        (["prepare", "bad.txt", "--out", "new"], 1, "at byte 1; --errors replace puts U+FFFD there"),
        (["prepare", "a.jsonl", "--out", "new", "--tokenizer", "no.json"], 1, "tokenizer='no.json' does not exist"),
        (["prepare", "a.jsonl", "--out", "new", "--validation-share", "2"], 2, "validation-share"),
        (["prepare", "a.jsonl", "--out", "a.jsonl"], 2, "a.jsonl"),
        (["prepare", "a.jsonl", "--out", "a.jsonl/x"], 1, "Not a directory"),
        (["show", "nope"], 1, "there is no folder nope"),
        (["check", "."], 1, "holds no prepared corpus"),
    ],
)
@pytest.mark.usefixtures("source")
def test_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.txt").write_bytes(b"a\xff")
    found, said = run(*arguments)
    assert found == status
    assert message in said
