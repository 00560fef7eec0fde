"""Engines: each trains everything, and a worker's death is not the sweep's."""

import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sweep_cases import FakeReplicas, results, tiny

from rebased.layers import MIXERS, ShortConv
from rebased.locks import locked
from rebased.runs import find_runs
from rebased.training import building, execute
from rebased.training.building import check_models
from rebased.training.engines import Engine, Processes, Serial, make_engine
from rebased.training.engines import processes as processes_module
from rebased.training.engines import serial as serial_module
from rebased.training.events import Elsewhere, EpochEnded, Event, Failed, Finished, Planned, Started
from rebased.training.folders import SweepFolder
from rebased.training.log import read_log
from rebased.training.plan import extend_plan, read_plan
from rebased.training.sweep import SweepOutcome, run_sweep

NAN = 1e30
"""A learning rate that no model survives."""
RUNS = [tiny(stack=s, learning_rate=r, seed=i, epochs=3) for s in ("rebased", "x2") for i, r in enumerate((3e-3, NAN))]
LONG = [run.but(epochs=30) for run in RUNS]
"""Long enough to be killed on the way."""


def sweep(folder: Path, engine: Engine, runs=RUNS, report: Callable[[Event], None] | None = None) -> SweepOutcome:
    return run_sweep(folder, runs, engine, report=report or (lambda event: None))


def reasons(folder: Path) -> Counter[str]:
    return Counter(run.result["finished"] for run in find_runs(folder))


def kill_worker(folder: Path, group: str) -> None:
    """The process that trains this group, as its log has it."""
    starts = [entry for entry in read_log(SweepFolder(folder).group(group).log) if entry["event"] == "start"]
    os.kill(starts[-1]["pid"], signal.SIGKILL)


def kill_once(folder: Path, events: list[Event]) -> Callable[[Event], None]:
    """Kills the first worker that has saved an epoch; collects all events."""

    def report(event: Event) -> None:
        if isinstance(event, EpochEnded) and not any(isinstance(earlier, EpochEnded) for earlier in events):
            kill_worker(folder, event.group)
        events.append(event)

    return report


def check_killed_once(events: list[Event], folder: Path) -> None:
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert failed.retried
    assert "its worker died" in failed.reason
    first, second = (event for event in events if isinstance(event, Started) and event.group == failed.group)
    assert first.epoch == 0
    assert second.epoch >= 1  # it went on
    assert len([event for event in events if isinstance(event, Finished)]) == 2
    assert reasons(folder) == {"epochs": 2, "diverged": 2}


def test_folder_may_be_a_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "Replicas", FakeReplicas)
    outcome = run_sweep(str(tmp_path), RUNS[:1], Serial("cpu"), report=lambda event: None)
    assert len(outcome.runs) == 1


def test_serial_trains_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose loss is no number ends with that reason, and the others go on."""
    events: list[Event] = []
    outcome = sweep(tmp_path, Serial("cpu"), report=events.append)
    assert not outcome.failures
    assert [run.config for run in outcome.runs] == [run.to_dict() for run in RUNS]
    assert reasons(tmp_path) == {"epochs": 2, "diverged": 2}
    assert events[0] == Planned(num_groups=2, num_runs=4, num_finished=0)
    before = results(tmp_path)

    monkeypatch.setattr(execute, "Replicas", lambda *_, **__: pytest.fail("training was begun"))
    events = []
    again = sweep(tmp_path, Serial("cpu"), report=events.append)
    assert again == outcome
    assert events == [Planned(num_groups=0, num_runs=4, num_finished=4)]
    assert results(tmp_path) == before


def test_group_that_fails_does_not_end_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fragile(FakeReplicas):
        def __init__(self, configs, **options) -> None:
            if configs[0].stack == "rebased":
                raise RuntimeError("out of memory")
            super().__init__(configs, **options)

    monkeypatch.setattr(execute, "Replicas", Fragile)
    outcome = sweep(tmp_path, Serial("cpu"))
    (failure,) = outcome.failures
    assert failure.reason == "RuntimeError: out of memory"
    assert failure.group.startswith("rebased-")
    assert [run.config["stack"] for run in outcome.runs] == ["x2", "x2"]
    assert failure.traceback == SweepFolder(tmp_path).group(failure.group).error
    written = failure.traceback.read_text()
    assert written.startswith("Traceback")
    assert 'raise RuntimeError("out of memory")' in written

    monkeypatch.setattr(execute, "Replicas", FakeReplicas)
    assert not sweep(tmp_path, Serial("cpu")).failures
    assert not failure.traceback.exists()


def test_impossible_model_is_found_before_anything_is_trained(tmp_path: Path) -> None:
    """The first of these would be trained to the end before the second's turn came."""
    runs = [tiny(d_model=width, seed=seed) for width in (24, 8) for seed in (1, 2)]
    message = "the model of rebased-d8-L16 cannot be built: num_heads=12 must be at most d_model=8"
    with pytest.raises(ValueError, match=message):
        sweep(tmp_path, Serial("cpu"), runs)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    """Commands looked before they called; who called from Python wrote among the other files."""
    (tmp_path / "book.txt").write_text("text")
    with pytest.raises(
        ValueError, match=r"is neither empty nor a sweep: there is no plan\.json; choose another folder"
    ):
        sweep(tmp_path, Serial("cpu"))
    assert [path.name for path in tmp_path.iterdir()] == ["book.txt"]


def test_every_model_is_built_once_and_draws_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(building, "LanguageModel", lambda config: built.append((config, torch.rand(1, device="cpu"))))
    before = torch.get_rng_state()
    check_models(RUNS + LONG)
    assert [config for config, _ in built] == [RUNS[0].model(), RUNS[2].model()]
    assert torch.equal(torch.get_rng_state(), before)


class Peeking(ShortConv):
    """Cannot be built on the meta device, which has no values."""

    def __init__(self, d_model: int, *, broken: bool = False) -> None:
        super().__init__(d_model)
        self.first = torch.ones(1).numpy()[0]
        if broken:
            raise AttributeError("no such thing")


def test_models_that_only_the_meta_device_refuses_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIXERS, "peeking", Peeking)
    peeking, too_many_heads = {"mixer": "peeking"}, {"mixer": "rebased", "options": {"num_heads": 99}}
    check_models([tiny(model_options={"layers": [peeking]})])
    with pytest.raises(ValueError, match=r"peeking\+rebased-d12-L16 cannot be built: num_heads=99"):
        check_models([tiny(model_options={"layers": [peeking, too_many_heads]})])


def test_errors_in_ones_own_code_are_left_to_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the group's folder gets the traceback."""
    monkeypatch.setitem(MIXERS, "peeking", Peeking)
    broken = tiny(model_options={"layers": [{"mixer": "peeking", "options": {"broken": True}}]})
    (failure,) = sweep(tmp_path, Serial("cpu"), [broken]).failures
    assert 'raise AttributeError("no such thing")' in failure.traceback.read_text()


def test_leftover_checkpoint_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "Replicas", FakeReplicas)
    sweep(tmp_path, Serial("cpu"))
    leftover = next(iter(SweepFolder(tmp_path).path.glob("groups/*"))) / "checkpoint.safetensors"
    leftover.write_bytes(b"")
    monkeypatch.setattr(execute, "Replicas", lambda *_, **__: pytest.fail("training was begun"))
    sweep(tmp_path, Serial("cpu"))
    assert not leftover.exists()


def test_processes_train_everything_and_survive_a_death(tmp_path: Path) -> None:
    events: list[Event] = []
    outcome = sweep(tmp_path, Processes("cpu", jobs=2), LONG, kill_once(tmp_path, events))
    assert not outcome.failures
    check_killed_once(events, tmp_path)
    workers = {entry["pid"] for log in tmp_path.glob("groups/*/log.jsonl") for entry in read_log(log) if "pid" in entry}
    assert os.getpid() not in workers
    assert len(workers) >= 3  # two, and another in place of the one that died


def test_group_whose_workers_keep_dying_is_given_up(tmp_path: Path) -> None:
    events: list[Event] = []

    def report(event: Event) -> None:
        if isinstance(event, Started) and event.group.startswith("rebased-"):
            kill_worker(tmp_path, event.group)
        events.append(event)

    outcome = sweep(tmp_path, Processes("cpu", jobs=2), LONG, report)
    assert [event.retried for event in events if isinstance(event, Failed)] == [True, False]
    (failure,) = outcome.failures
    assert failure.reason == "its worker died, exit code -9"
    assert [run.config["stack"] for run in outcome.runs] == ["x2", "x2"]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")  # of Ray's own
def test_ray_trains_everything_and_survives_a_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster of this machine, with two workers."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "only for this test")  # otherwise Ray leaves one in the home directory
    try:
        engine = make_engine("ray", device="cpu", jobs=2)
        assert engine.num_workers == 2
        events: list[Event] = []
        outcome = sweep(tmp_path, engine, LONG, kill_once(tmp_path, events))
    finally:
        ray.shutdown()
    assert not outcome.failures
    check_killed_once(events, tmp_path)


@pytest.mark.parametrize(
    ("device", "jobs", "num_cpus", "num_workers"),
    [("auto", 1, 4, 4), ("cuda", 6, 6, 4), ("cpu", 1, 1, 1), ("cpu", 2, 2, 2)],
)
def test_ray_trains_a_group_on_each_gpu(
    device: str, jobs: int, num_cpus: int, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of one processor trained one group at a time, and left all GPUs but one idle."""
    started: dict[str, Any] = {}
    fake = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **options: started.update(options),
        cluster_resources=lambda: {"CPU": float(started["num_cpus"]), "GPU": 4.0},
        remote=lambda **options: started.update(task=options),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    engine = make_engine("ray", device=device, jobs=jobs)
    assert (started["num_cpus"], engine.num_workers) == (num_cpus, num_workers)
    needed = {"CPU": started["task"]["num_cpus"], "GPU": started["task"]["num_gpus"]}
    at_once = min(fake.cluster_resources()[name] // count for name, count in needed.items() if count)
    assert at_once == num_workers


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")  # of Ray's own
def test_ray_ends_what_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks would train on in a cluster that lives on, and hold their groups' locks."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "only for this test")

    def interrupt(event: Event) -> None:
        if isinstance(event, EpochEnded):
            raise KeyboardInterrupt

    try:
        engine = make_engine("ray", device="cpu", jobs=2)
        with pytest.raises(KeyboardInterrupt):
            sweep(tmp_path, engine, [run.but(epochs=100_000) for run in RUNS], interrupt)
        for group in read_plan(SweepFolder(tmp_path)):
            with locked(SweepFolder(tmp_path).group(group.name).lock, "it"):
                pass
    finally:
        ray.shutdown()


def test_workers_share_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (processes_module, serial_module):
        monkeypatch.setattr(module, "fitting", lambda config, wanted, device, num_sharing=1: (device, num_sharing))
        monkeypatch.setattr(module, "current", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Serial("cuda").fitting(RUNS[0], 3) == ("cuda", 1)
    assert Processes("cuda", jobs=2).fitting(RUNS[0], 3) == ("cuda", 1)
    assert Processes("cuda", jobs=3).fitting(RUNS[0], 3) == ("cuda", 2)
    assert Processes("cuda:1", jobs=2).fitting(RUNS[0], 3) == ("cuda:1", 2)
    assert Processes("cpu", jobs=50).fitting(RUNS[0], 3) == ("cpu", 50)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("threads", {}, "engine='threads' is unknown; it may be 'serial', 'processes', 'ray'"),
        ("serial", {"jobs": 2}, "jobs=2 goes with engine='processes' or 'ray'"),
        (None, {"jobs": 0}, "jobs=0 must be at least 1"),
        (None, {"device": "tpu"}, "device='tpu' is unknown"),
        ("ray", {"device": "cuda:1"}, "device='cuda:1' is unknown to engine='ray'"),
        ("serial", {"ray_address": "auto"}, "ray_address='auto' goes with engine='ray'"),
        ("ray", {"ray_address": "auto", "jobs": 2}, "jobs=2 is for a cluster of this machine; ray_address='auto' has"),
    ],
)
def test_what_does_not_go_together(name: str | None, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_engine(name, **{"device": "cpu"} | options)


def test_several_jobs_mean_processes() -> None:
    assert isinstance(make_engine(device="cpu"), Serial)
    assert isinstance(make_engine(device="cpu", jobs=2), Processes)


def test_a_group_that_another_process_trains_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No failure, and no reason not to train the others."""
    monkeypatch.setattr(execute, "Replicas", FakeReplicas)
    monkeypatch.setattr(execute, "locked", lambda path, what: locked(path, what, patience=0))
    folder, events = SweepFolder(tmp_path), list[Event]()
    first, second = extend_plan(folder, RUNS, lambda config, num_wanted: (2, 1))
    with locked(folder.group(first.name).lock, "it"):
        outcome = sweep(tmp_path, Serial("cpu"), report=events.append)
    assert not outcome.failures
    assert [run.config["stack"] for run in outcome.runs] == [second.configs[0].stack] * 2
    (left,) = (event for event in events if isinstance(event, Elsewhere))
    assert left.group == first.name
    assert f"in use by process {os.getpid()}" in left.reason
    assert not folder.group(first.name).error.exists()
    assert len(sweep(tmp_path, Serial("cpu")).runs) == 4
