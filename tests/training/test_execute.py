"""The training of a group: what it writes, and that it can be interrupted anywhere."""

import contextlib
import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sweep_cases import DIVERGES, FakeReplicas, results, tiny

from rebased.locks import LockedError, locked
from rebased.runs import read_run
from rebased.training import execute
from rebased.training.events import EpochEnded, Event, Finished, Started, Stepped
from rebased.training.execute import GroupTask, train_group
from rebased.training.folders import SweepFolder
from rebased.training.log import read_log
from rebased.training.plan import Group
from rebased.training.replicas import Record

GROUP = Group(
    (tiny(seed=2), tiny(seed=3), tiny(seed=9), tiny(seed=9, learning_rate=DIVERGES)),  # 9 is past the last epoch
    micro_batches=1,
)


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "Replicas", FakeReplicas)


def train(folder: Path, group: Group = GROUP) -> list[Event]:
    events: list[Event] = []
    train_group(GroupTask(folder, group), "cpu", events.append)
    return events


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "Replicas", FakeReplicas)
        train(folder)
    return results(folder)


def test_runs_end_with_their_reasons(tmp_path: Path) -> None:
    train(tmp_path)
    sweep = SweepFolder(tmp_path)
    found = [read_run(sweep.run(config)) for config in GROUP.configs]
    assert [run.result["finished"] for run in found] == ["reached", "reached", "epochs", "diverged"]
    assert [run.result["epochs"] for run in found] == [2, 3, 4, 2]
    assert [len(run.metrics) for run in found] == [2, 3, 4, 2]
    assert [run.result["accuracy"] for run in found] == [1, 1, 0.04, 0.02]
    assert [run.config for run in found] == [config.to_dict() for config in GROUP.configs]
    assert {run.weights()["weight"].shape for run in found} == {(2,)}


def test_nothing_but_results_and_log_remains(tmp_path: Path) -> None:
    train(tmp_path)
    folder = SweepFolder(tmp_path).group(GROUP.name)
    assert {path.name for path in folder.path.iterdir()} == {"lock", "log.jsonl"}
    assert not list(tmp_path.rglob("*.partial"))
    log = read_log(folder.log)
    assert [entry["event"] for entry in log] == ["start", "epoch", "epoch", "epoch", "epoch"]
    assert [entry["num_active"] for entry in log[1:]] == [4, 4, 2, 1]
    assert log[0]["environment"]["device"] == "cpu"


def test_memory_is_the_groups_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what an earlier group of the same process has needed. On a GPU that is made up here."""
    peak = [2**30]
    fakes = {
        "get_device_name": lambda device: "H200",
        "get_device_properties": lambda device: SimpleNamespace(uuid="1"),
        "max_memory_allocated": lambda device: max(peak),
        "reset_peak_memory_stats": lambda device: peak.clear(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(execute, "current", lambda device: contextlib.nullcontext())

    class Replicas(FakeReplicas):
        def train_epoch(self, *arguments: Any) -> dict[int, Record]:
            peak.append(100)
            return super().train_epoch(*arguments)

    monkeypatch.setattr(execute, "Replicas", Replicas)
    train_group(GroupTask(tmp_path, GROUP), "cuda", lambda event: None)
    entries = read_log(SweepFolder(tmp_path).group(GROUP.name).log)
    assert {entry["peak_bytes"] for entry in entries if entry["event"] == "epoch"} == {100}


def test_results_hold_no_time(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    train(tmp_path)
    assert results(tmp_path) == undisturbed


def test_events_tell_the_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "_SECONDS_BETWEEN_STEPS", 0)
    events = train(tmp_path)
    assert events[0] == Started(GROUP.name, GROUP.run_names, 0, 4, {})
    assert events[1:3] == [Stepped(GROUP.name, 1, 1, 2), Stepped(GROUP.name, 1, 2, 2)]
    ends = [event for event in events if isinstance(event, EpochEnded)]
    assert [list(event.records) for event in ends] == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2], [2]]
    assert events[-1] == Finished(GROUP.name)


def test_finished_group_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path)
    monkeypatch.setattr(execute, "Replicas", lambda *_, **__: pytest.fail("training was begun"))
    assert train(tmp_path) == [Finished(GROUP.name)]


class KilledError(BaseException):
    """As if the process were gone: no handler of Exception runs."""


def kill_at(patch: pytest.MonkeyPatch, function: str, when: int) -> None:
    """Instead of the call of ``os.<function>`` number ``when``."""
    true, calls = getattr(os, function), 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == when:
            raise KilledError
        return true(*arguments, **options)

    patch.setattr(os, function, counted)


@pytest.mark.parametrize("function", ["replace", "unlink"])
def test_killed_at_any_file_it_ends_the_same(function: str, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    """Before each rename in turn, and before the checkpoint is removed: then gone on with."""
    when = 0
    while True:
        when += 1
        folder = tmp_path / str(when)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, function, when)
            try:
                train(folder)
                break
            except KilledError:
                pass
        events = train(folder)
        assert results(folder) == undisturbed, f"killed at {function} number {when}"
        assert len([event for event in events if isinstance(event, EpochEnded)]) <= 4
        assert not SweepFolder(folder).group(GROUP.name).checkpoint.exists()
    assert when > (20 if function == "replace" else 1)


def test_epochs_that_were_saved_are_not_repeated(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    for epoch in (1, 2, 3):

        def kill_after(event: Event, epoch: int = epoch) -> None:
            if isinstance(event, EpochEnded):
                assert event.epoch == epoch
                raise KilledError

        with pytest.raises(KilledError):
            train_group(GroupTask(tmp_path, GROUP), "cpu", kill_after)
    started, *_, last, _ = train(tmp_path)
    assert isinstance(started, Started)
    assert started.epoch == 3
    assert {index: record.finished for index, record in started.finished.items()} == {
        0: "reached",
        1: "reached",
        3: "diverged",
    }
    assert isinstance(last, EpochEnded)
    assert list(last.records) == [2]
    assert results(tmp_path) == undisturbed


def test_finished_runs_are_not_repeated_without_a_checkpoint(tmp_path: Path) -> None:
    def kill_after(event: Event) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 2:
            raise KilledError

    with pytest.raises(KilledError):
        train_group(GroupTask(tmp_path, GROUP), "cpu", kill_after)
    SweepFolder(tmp_path).group(GROUP.name).checkpoint.unlink()
    first = next(event for event in train(tmp_path) if isinstance(event, EpochEnded))
    assert (first.epoch, list(first.records)) == (1, [1, 2])


def test_broken_checkpoint_is_named(tmp_path: Path) -> None:
    checkpoint = SweepFolder(tmp_path).group(GROUP.name).checkpoint
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"no safetensors")
    with pytest.raises(
        ValueError, match=r"checkpoint\.safetensors cannot be read .*; without it the group begins anew"
    ):
        train(tmp_path)


def test_group_in_use_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "locked", lambda path, what: locked(path, what, patience=0))
    with (
        locked(SweepFolder(tmp_path).group(GROUP.name).lock, "it"),
        pytest.raises(LockedError, match=f"the group {GROUP.name} is in use by process {os.getpid()}"),
    ):
        train(tmp_path)
    assert not results(tmp_path)


def test_record_of_a_loss_that_is_no_number_survives_the_checkpoint(tmp_path: Path) -> None:
    """A diverged run is among the checkpoint's records, and JSON has no NaN."""
    from rebased.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

    record = Record(1, float("nan"), 0.1, 0.01, "diverged")
    write_checkpoint(tmp_path / "c", Checkpoint(1, [0], {0: [record]}, {}))
    assert repr(read_checkpoint(tmp_path / "c").history) == repr({0: [record]})


def test_checkpoint_of_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records have a field that ours have not."""
    from rebased.training import checkpoint

    @dataclasses.dataclass(frozen=True)
    class LaterRecord(Record):
        perplexity: float = 1.0

    record = LaterRecord(1, 1.0, 0.5, 1e-3, None)
    checkpoint.write_checkpoint(tmp_path / "c", checkpoint.Checkpoint(1, [0], {0: [record]}, {}))
    with pytest.raises(ValueError, match=r"c cannot be read .*perplexity.*; without it the group begins anew"):
        checkpoint.read_checkpoint(tmp_path / "c")
