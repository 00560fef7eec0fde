"""The run directory: names, whole files, and runs read back."""

import json
import math
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rebased import runs

CONFIG = {"stack": "rebased", "seed": 1, "options": {"b": 1, "a": [0.003]}}


def write_run(folder: Path, config: dict[str, object] = CONFIG) -> None:
    runs.write_config(folder, config)
    runs.write_metrics(folder, [{"epoch": 1, "loss": 0.1}, {"epoch": 2, "loss": math.nan}])
    runs.write_weights(folder, {"w": torch.arange(6.0).view(2, 3).T})
    runs.write_result(folder, {"accuracy": 0.5})


def test_name_is_a_hash_of_the_config() -> None:
    name = runs.run_name(CONFIG, "rebased-s1")
    assert name.startswith("rebased-s1-")
    assert name == runs.run_name({"options": {"a": [0.003], "b": 1}, "seed": 1, "stack": "rebased"}, "rebased-s1")
    assert name != runs.run_name(CONFIG | {"seed": 2}, "rebased-s1")


def test_finished_run_is_read_back(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    run = runs.read_run(tmp_path / "a")
    assert run.config == CONFIG
    assert run.result == {"accuracy": 0.5}
    assert run.metrics[0] == {"epoch": 1, "loss": 0.1}
    assert math.isnan(run.metrics[1]["loss"])
    torch.testing.assert_close(run.weights()["w"], torch.arange(6.0).view(2, 3).T, rtol=0, atol=0)


def test_files_are_strict_json(tmp_path: Path) -> None:
    """NaN is none of JSON, and many readers refuse it."""
    write_run(tmp_path)

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_json_without_numbers_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        runs.write_json(tmp_path / "file", {"loss": math.nan})
    assert not list(tmp_path.iterdir())


def test_runs_are_found_by_name_once_finished(tmp_path: Path) -> None:
    for name in ("b/2", "a", "b/1"):
        write_run(tmp_path / name)
    runs.write_config(tmp_path / "begun", CONFIG)
    assert [run.folder for run in runs.find_runs(tmp_path)] == [tmp_path / name for name in ("a", "b/1", "b/2")]
    with pytest.raises(ValueError, match="is no finished run"):
        runs.read_run(tmp_path / "begun")


def test_folders_may_be_strings(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    (found,) = runs.find_runs(str(tmp_path))
    assert found.folder == runs.read_run(str(tmp_path / "a")).folder == tmp_path / "a"


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"folder='.*typo' is no folder"):
        runs.find_runs(tmp_path / "typo")


def test_run_of_another_config_is_refused(tmp_path: Path) -> None:
    runs.write_config(tmp_path, CONFIG)
    runs.write_config(tmp_path, CONFIG)
    with pytest.raises(ValueError, match="is the config of another run"):
        runs.write_config(tmp_path, CONFIG | {"seed": 2})


def test_broken_file_is_named(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        runs.read_run(tmp_path)


def test_file_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    runs.write_text(path, "old")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        runs.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        runs.write_text(tmp_path / "file", "half a character: \ud800")
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
    runs.write_text(tmp_path / "file", "new", durable=durable)
    assert done == (["file", "rename", "directory"] if durable else ["rename"])


def test_several_may_write_one_file(tmp_path: Path) -> None:
    """Each to a part of its own: with one part for all, some would find theirs gone."""
    script = "import sys; from pathlib import Path; from rebased.runs import write_text\n"
    script += "for _ in range(300): write_text(Path(sys.argv[1]), sys.argv[2] * 1000, durable=False, shared=True)"
    path = tmp_path / "text"
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path), letter]) for letter in "ab"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    assert path.read_text() in ("a" * 1000, "b" * 1000)
    assert [each.name for each in tmp_path.iterdir()] == ["text"]


def test_another_process_may_begin_while_a_folder_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first files came after the first of them was looked for, and were taken for somebody else's."""
    listed = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        for name in ("plan.json", "log.txt"):
            (folder / name).touch()
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    runs.check_vacant(tmp_path, "a sweep", first="plan.json")
