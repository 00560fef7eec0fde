"""Preparations that are interrupted: killed at any moment, out of disk, or given again with other arguments."""

import fcntl
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import killed_preparation
import pytest
from corpus_cases import files_in, stored_documents, write_json_lines

from rebased.corpora import Progress, encoding, open_corpus, pieces, prepare, writing

DOCUMENTS = [f"document {number}\n" * (number % 5) for number in range(30)]


def test_killed_at_any_step(tmp_path: Path) -> None:
    """With kill -9, at every step that changes the disk: finished, each byte is that of an uninterrupted one."""
    documents = ["short", "a long one, in several pieces\n" * 6, "", *[f"number {n} " * 5 for n in range(8)]]
    sources = [
        write_json_lines(tmp_path / "a.jsonl", documents[:5]),
        write_json_lines(tmp_path / "b.jsonl", documents[5:]),
    ]
    finished = subprocess.run(
        [sys.executable, killed_preparation.__file__, str(tmp_path), *sources],
        capture_output=True,
        text=True,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    num_steps = int(finished.stdout)
    assert num_steps > 60
    whole = files_in(tmp_path / "whole" / "out")
    assert len([name for name in whole if name.startswith("train-")]) > 2
    assert len([name for name in whole if name.startswith("validation-")]) > 1
    for step in range(1, num_steps + 1):
        assert files_in(tmp_path / f"killed-{step}" / "out") == whole, f"killed at step {step}"
    splits = [stored_documents(open_corpus(tmp_path / "whole" / "out"), name) for name in ("train", "validation")]
    assert sorted(chain.from_iterable(splits)) == sorted(documents)


class StoppedError(Exception):
    pass


def stop_after(documents: int, source: str, out: Path, **options: object) -> None:
    def stop(progress: Progress) -> None:
        if progress.documents >= documents:
            raise StoppedError

    with pytest.raises(StoppedError):
        prepare([source], out, validation=0, on_progress=stop, **options)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(writing, "_BATCH_PIECES", 4)
    return write_json_lines(tmp_path / "a.jsonl", DOCUMENTS)


@pytest.fixture
def tokenised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is tokenised from now on."""
    texts: list[str] = []
    encode = encoding.Encoder.__call__

    def recorded(encoder: encoding.Encoder, batch: list[str]) -> object:
        texts.extend(batch)
        return encode(encoder, batch)

    monkeypatch.setattr(encoding.Encoder, "__call__", recorded)
    return texts


def test_what_is_finished_is_kept(tmp_path: Path, source: str, tokenised: list[str]) -> None:
    """Full shards are not touched again, and what they hold is not tokenised again."""
    stop_after(20, source, tmp_path / "out", shard_tokens=100)
    shards = sorted((tmp_path / "out").glob("train-*"))[:-1]
    assert len(shards) >= 3
    before = [(shard.stat().st_mtime_ns, shard.stat().st_ino) for shard in shards]
    tokenised.clear()
    corpus = prepare([source], tmp_path / "out", validation=0, shard_tokens=100)
    assert stored_documents(corpus, "train") == DOCUMENTS
    assert [(shard.stat().st_mtime_ns, shard.stat().st_ino) for shard in shards] == before
    assert tokenised == DOCUMENTS[-len(tokenised) :]
    assert 10 <= len(tokenised) <= 14
    tokenised.clear()
    prepare([source], tmp_path / "out", validation=0, shard_tokens=100)
    assert tokenised == []


def test_commits_come_with_time_too(
    tmp_path: Path, source: str, tokenised: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a shard takes long to fill, and within a document that has no end."""
    monkeypatch.setattr(pieces, "PIECE", 12)
    monkeypatch.setattr(writing, "_COMMIT_SECONDS", -1.0)
    stop_after(18, source, tmp_path / "out")
    written = len(tokenised)
    tokenised.clear()
    corpus = prepare([source], tmp_path / "out", validation=0)
    assert stored_documents(corpus, "train") == DOCUMENTS
    again = tokenised.copy()
    tokenised.clear()
    prepare([source], tmp_path / "new", validation=0)
    assert again == tokenised[written:]
    assert files_in(tmp_path / "out") == files_in(tmp_path / "new")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard_tokens": 200}, "shard_tokens was 100 and is now 200"),
        ({"errors": "replace"}, "errors was 'strict' and is now 'replace'"),
        ({"set_field": "kind"}, "set_field was 'set' and is now 'kind'"),
        ({"text_field": "body"}, "text_field was 'text' and is now 'body'"),
        ({"validation": 0.5}, "validation was 0.0 and is now 0.5"),
        ({"validation": ["python"]}, r"validation was 0.0 and is now python \("),
        ({"tokenizer": "other"}, "tokenizer was '[0-9a-f]{64}' and is now"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_other_arguments(tmp_path: Path, source: str, changes: dict[str, object], message: str, finished: bool) -> None:
    if "tokenizer" in changes:
        other = encoding.byte_tokenizer()
        other.add_tokens(["more"])
        other.save_pretrained(tmp_path / "other")
        changes = {"tokenizer": str(tmp_path / "other")}
    options: dict[str, object] = {"shard_tokens": 100, "validation": 0}
    if finished:
        prepare([source], tmp_path / "out", **options)
    else:
        stop_after(20, source, tmp_path / "out", shard_tokens=100)
    before = files_in(tmp_path / "out")
    with pytest.raises(
        ValueError, match=f"out holds another corpus: {message}.*give the same arguments, or another folder"
    ):
        prepare([source], tmp_path / "out", **options | changes)
    assert files_in(tmp_path / "out") == before


def test_a_source_that_has_changed(tmp_path: Path, source: str) -> None:
    stop_after(20, source, tmp_path / "out", shard_tokens=100)
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(ValueError, match=r"sources was .*a.jsonl \([\d,]+ bytes in 1 file, list .* and is now "):
        prepare([source], tmp_path / "out", validation=0, shard_tokens=100)


def test_other_arguments_before_anything_is_written(tmp_path: Path) -> None:
    """What failed at once is tried again with what was missing, and leaves nothing behind."""
    (tmp_path / "a.txt").write_bytes(b"x" * 50 + b"\xff")
    source = str(tmp_path / "a.txt")
    with pytest.raises(ValueError, match="not UTF-8"):
        prepare([source], tmp_path / "again" / "out", validation=0, shard_tokens=10)
    for name in ("again", "new"):
        prepare([source], tmp_path / name / "out", validation=0, shard_tokens=10, errors="replace")
    assert files_in(tmp_path / "again") == files_in(tmp_path / "new")


def test_files_of_other_arguments_are_removed(tmp_path: Path, source: str) -> None:
    """Of a preparation that was stopped before its first commit."""
    stop_after(8, source, tmp_path / "again")
    assert (tmp_path / "again" / "train-00000.tokens").exists()
    for name in ("again", "new"):
        prepare([source], tmp_path / name, validation=1.0)
    assert files_in(tmp_path / "again") == files_in(tmp_path / "new")


@pytest.mark.parametrize("damage", ["shorter", "absent", "full shard", "state"])
def test_what_was_written_before_is_damaged(tmp_path: Path, source: str, damage: str) -> None:
    stop_after(20, source, tmp_path / "out", shard_tokens=100)
    shards = sorted((tmp_path / "out").glob("train-*"))
    if damage == "shorter":
        shards[-1].write_bytes(b"")
        message = f"{shards[-1].name} has 0 of the .* bytes that were written"
    elif damage == "absent":
        (tmp_path / "out" / "train.documents").unlink()
        message = "train.documents has 0 of the"
    elif damage == "full shard":
        shards[0].unlink()
        message = f"{shards[0].name} is missing"
    else:
        (tmp_path / "out" / "unfinished.json").write_text("{")
        message = "unfinished.json cannot be read"
    with pytest.raises(ValueError, match=message):
        prepare([source], tmp_path / "out", validation=0, shard_tokens=100)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is always full")
def test_full_disk(tmp_path: Path, source: str) -> None:
    """The error says so; when there is room, the same call goes on from the shards that were finished."""
    stop_after(12, source, tmp_path / "out", shard_tokens=100)
    full = sorted((tmp_path / "out").glob("train-*"))
    blocked = tmp_path / "out" / f"train-{len(full):05d}.tokens"
    blocked.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"the disk is full; what is finished in .*out stays: make room"):
        prepare([source], tmp_path / "out", validation=0, shard_tokens=100)
    blocked.unlink()
    corpus = prepare([source], tmp_path / "out", validation=0, shard_tokens=100)
    assert files_in(corpus.folder) == files_in(
        prepare([source], tmp_path / "whole", validation=0, shard_tokens=100).folder
    )


def test_folders_of_others_are_left_alone(tmp_path: Path, source: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    with pytest.raises(ValueError, match="out is neither empty nor a corpus"):
        prepare([source], tmp_path / "out")
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["precious"]


def test_one_process_at_a_time(tmp_path: Path, source: str) -> None:
    (tmp_path / "out").mkdir()
    other = os.open(tmp_path / "out", os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="out is being prepared by another process"):
            prepare([source], tmp_path / "out")
    finally:
        os.close(other)
    prepare([source], tmp_path / "out", validation=0)
