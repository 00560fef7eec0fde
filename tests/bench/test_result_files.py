"""Result files of benches: whole or not at all."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from rebased.bench.files import Result


@dataclass(frozen=True)
class Found(Result):
    value: int


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "result.json"
    Found(1).write(path)
    seen: list[str] = []
    original = os.fsync

    def fsync(descriptor: int) -> None:
        seen.append(path.read_text())
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    Found(2).write(path)
    assert json.loads(seen[0]) == {"value": 1}
    assert json.loads(path.read_text()) == {"value": 2}
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]
