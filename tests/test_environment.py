"""The environment record says where a result was made, and nothing personal."""

import dataclasses
import datetime
import json
import subprocess
from pathlib import Path

import numpy
import pytest
import torch

from rebased import environment
from rebased.environment import describe_environment


def test_record_of_this_process() -> None:
    record = describe_environment(torch.device("cpu"))
    assert record.device == "cpu"
    assert record.device_name
    assert record.cpu_count >= 1
    assert record.threads == torch.get_num_threads()
    assert record.torch == torch.__version__
    assert record.numpy == numpy.__version__
    assert datetime.datetime.fromisoformat(record.date).tzinfo is not None
    json.dumps(dataclasses.asdict(record))


def test_absent_package_has_no_version() -> None:
    assert environment._package_version("a-package-that-does-not-exist") is None


def test_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit counts only if git tracks the package: not when it is merely installed inside a checkout."""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    module = tmp_path / "module.py"
    module.write_text("x = 1\n")
    monkeypatch.setattr(environment, "__file__", str(module))
    assert environment._commit() is None  # no checkout at all

    git("init")
    git("commit", "--allow-empty", "--message", "empty")
    assert environment._commit() is None  # a checkout of something else

    git("add", "module.py")
    git("commit", "--message", "module")
    assert environment._commit() == git("rev-parse", "HEAD")

    module.write_text("x = 2\n")
    assert environment._commit() == git("rev-parse", "HEAD") + "-dirty"


def test_no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment._commit() is None


def test_the_digest_is_of_names_and_contents(tmp_path: Path) -> None:
    def digest(**modules: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, text in modules.items():
            (folder / f"{name}.py").write_bytes(text.encode())
        (folder / "data.txt").write_text(folder.name)
        return environment.source_digest(folder)

    first = digest(a="x = 1\n", b="")
    assert digest(b="", a="x = 1\r\n") == first
    assert len({first, digest(a="x = 2\n", b=""), digest(a="x = 1\n", c=""), digest(a="x = 1\n")}) == 4
    assert describe_environment(torch.device("cpu")).source == environment.source_digest()
