"""Files that are there whole or not at all, and on the disk where that is promised."""

import math
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rebased import files


def test_json_without_numbers_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "file", {"loss": math.nan})
    assert not list(tmp_path.iterdir())


def test_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        files.write_text(tmp_path / "file", "half a character: \ud800")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("durable", [True, False])
def test_durable_file_is_on_the_disk_before_its_name_and_then_that(
    durable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is the directory's: until that is on the disk too, a machine that fails may have the old file."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def rename(source: Path, target: Path) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    files.write_text(tmp_path / "file", "new", durable=durable)
    assert done == (["file", "rename", "directory"] if durable else ["rename"])


def test_several_may_write_one_file(tmp_path: Path) -> None:
    """Each to a part of its own: with one part for all, some would find theirs gone."""
    script = "import sys; from pathlib import Path; from rebased.files import write_text\n"
    script += "for _ in range(300): write_text(Path(sys.argv[1]), sys.argv[2] * 1000, durable=False, shared=True)"
    path = tmp_path / "text"
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path), letter]) for letter in "ab"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert [each.name for each in tmp_path.iterdir()] == ["text"]
