"""The run directory: names, configs, and runs read back."""

import json
import math
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


def test_another_process_may_begin_while_a_folder_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first files came after the first of them was looked for, and were taken for somebody else's."""
    listed = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        for name in ("plan.json", "log.txt"):
            (folder / name).touch()
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    runs.check_vacant(tmp_path, "a sweep", first="plan.json")
