"""Runs of which only a line of the ledger is left: they are found in, and not trained again."""

import dataclasses
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from paper_cases import tiny

from rebased.paper.conduct import conduct, num_finished, sweep_folder
from rebased.paper.experiment import Experiment
from rebased.paper.findings import Findings, findings_path
from rebased.paper.ledger import LEDGER, Entry, read_ledger, write_ledger
from rebased.paper.registry import EXPERIMENTS
from rebased.training.engines import Engine, Serial
from rebased.training.events import Event, Finished, Planned, Started
from rebased.training.folders import name_of

RESULTS = Path(__file__).parents[2] / "results"
TABLE1 = tiny(EXPERIMENTS["table1"])


def carry_out(experiment: Experiment, out: Path, engine: Engine | None, scale: str = "smoke") -> Findings:
    findings, failures = conduct(experiment, scale, out, engine, device="cpu", report=lambda event: None)
    assert not failures
    return findings


def test_the_ledger_is_enough(tmp_path: Path) -> None:
    """Without the runs' folders the same is found, and the time is known; a run that is missing is trained alone."""
    before = carry_out(TABLE1, tmp_path, Serial("cpu"))
    shutil.rmtree(sweep_folder(tmp_path).path)
    after = carry_out(TABLE1, tmp_path, None)
    assert (after.data, after.machines, after.num_finished) == (before.data, before.machines, before.num_finished)
    assert after.seconds == before.seconds > 0
    lost, *kept = (tmp_path / LEDGER).read_text().splitlines(keepends=True)
    (tmp_path / LEDGER).write_text("".join(kept))
    events = list[Event]()
    again, _ = conduct(TABLE1, "smoke", tmp_path, Serial("cpu"), device="cpu", report=events.append)
    assert [(event.num_groups, event.num_runs) for event in events if isinstance(event, Planned)] == [(1, 1)]
    assert again.is_complete
    assert [json.loads(line)["run"] for line in (tmp_path / LEDGER).read_text().splitlines()] == [
        json.loads(line)["run"] for line in (lost, *kept)
    ]


def test_the_ledger_has_every_group_that_has_ended(tmp_path: Path) -> None:
    """Also where the others are never finished, and all else is lost with the machine."""
    events = list[Event]()

    def stop_at_the_second(event: Event) -> None:
        events.append(event)
        if sum(isinstance(event, Started) for event in events) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        conduct(TABLE1, "smoke", tmp_path, Serial("cpu"), device="cpu", report=stop_at_the_second)
    started = next(event for event in events if isinstance(event, Started))
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert read_ledger(tmp_path).keys() == set(started.run_names)
    shutil.rmtree(sweep_folder(tmp_path).path)
    assert num_finished(TABLE1, "smoke", tmp_path, read_ledger(tmp_path)) == len(started.run_names)


def test_trouble_with_the_ledger_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, say, when the first group ends: the second is trained, and all are entered at the end."""
    events, tries = list[Event](), list[int]()

    def write(out: Path, entries: Iterable[Entry]) -> None:
        tries.append(len(list(entries)))
        if len(tries) == 1:
            raise OSError("no space left")
        write_ledger(out, entries)

    monkeypatch.setattr("rebased.paper.conduct.write_ledger", write)
    findings, failures = conduct(TABLE1, "smoke", tmp_path, Serial("cpu"), device="cpu", report=events.append)
    assert not failures
    assert findings.is_complete
    assert len(read_ledger(tmp_path)) == findings.num_runs
    assert sum(isinstance(event, Finished) for event in events) == len(tries) - 1 > 1
    assert "no space left" in caplog.text


def test_time_that_nothing_recorded_is_not_zero(tmp_path: Path) -> None:
    """Folders of runs came from another machine without the logs of their groups."""
    timed = carry_out(TABLE1, tmp_path, Serial("cpu"))
    (tmp_path / LEDGER).unlink()
    for log in sweep_folder(tmp_path).path.rglob("log.jsonl"):
        log.unlink()
    for engine in (None, Serial("cpu")):  # from folders, then from the ledger as well
        untimed = carry_out(TABLE1, tmp_path, engine)
        assert (untimed.seconds, untimed.num_untimed) == (0.0, timed.num_finished)
        assert {entry.seconds for entry in read_ledger(tmp_path).values()} == {None}
    assert (timed.num_untimed, timed.data) == (0, untimed.data)


@pytest.mark.parametrize("name", ["figure2", "figure10"])
def test_the_ledger_is_enough_for_what_runs_watched(name: str, tmp_path: Path) -> None:
    """Also of a run that diverged, whose γ and β are not finite."""
    experiment = tiny(EXPERIMENTS[name], learning_rate=[1e-2, 1e30])
    before = carry_out(experiment, tmp_path, Serial("cpu"))
    ledger = (tmp_path / LEDGER).read_text()
    assert "[null, null]" in ledger
    shutil.rmtree(sweep_folder(tmp_path).path)
    after = carry_out(experiment, tmp_path, None)
    assert after.is_complete
    assert (after.data, after.machines) == (before.data, before.machines)
    assert (tmp_path / LEDGER).read_text() == ledger


def test_an_older_ledger_has_results_alone(tmp_path: Path) -> None:
    figure1, figure10 = tiny(EXPERIMENTS["figure1"]), tiny(EXPERIMENTS["figure10"])
    carry_out(figure10, tmp_path, Serial("cpu"))
    shutil.rmtree(sweep_folder(tmp_path).path)
    kept = read_ledger(tmp_path)
    older = {name: dataclasses.replace(entry, watched={}) for name, entry in kept.items()}
    assert [num_finished(figure10, "smoke", tmp_path, ledger) for ledger in (kept, older)] == [5, 0]
    assert [num_finished(figure1, "smoke", tmp_path, ledger) for ledger in (kept, older)] == [4, 4]


def test_weights_are_in_folders_alone(tmp_path: Path) -> None:
    experiment = tiny(EXPERIMENTS["figure9"], learning_rate=[1e-2], seed=[1])
    found = carry_out(experiment, tmp_path, Serial("cpu"))
    assert num_finished(experiment, "smoke", tmp_path, read_ledger(tmp_path)) == 3
    shutil.rmtree(sweep_folder(tmp_path).path)
    assert num_finished(experiment, "smoke", tmp_path, read_ledger(tmp_path)) == 0
    assert carry_out(experiment, tmp_path, None) == Findings.read(findings_path(tmp_path, "smoke", "figure9"))
    assert carry_out(experiment, tmp_path, None).data == json.loads(json.dumps(found.data))


def test_entries_are_added_and_replaced(tmp_path: Path) -> None:
    run, other = TABLE1.configs("smoke")[:2]
    write_ledger(tmp_path, [Entry(other, {"accuracy": 0.25}, 1.5)])
    watching = Entry(run, {"accuracy": 0.5}, 2.0, (0.25, 0.5), {"gamma": [[1.0, 0.25], [None, None]]})
    write_ledger(tmp_path, [watching, Entry(other, {"accuracy": 1.0}, 3.0)])
    assert read_ledger(tmp_path) == {name_of(run): watching, name_of(other): Entry(other, {"accuracy": 1.0}, 3.0)}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        '{"run": {}, "result": {}, "seconds": 1}',
        '{"run": {"stack": "rebased", "d_model": 16, "seq_len": 64, "learning_rate": 1e-3, "seed": 1}, "seconds": 1}',
        Entry(TABLE1.configs("smoke")[1], {}, 0.0, (0.5, 0.75), {"gamma": [[1.0, 0.0]]}).line().strip(),
    ],
    ids=["cut off", "a number", "no fields", "no result", "watched for fewer epochs"],
)
def test_what_is_no_ledger(line: str, tmp_path: Path) -> None:
    run = TABLE1.configs("smoke")[0]
    (tmp_path / LEDGER).write_text(Entry(run, {}, 0.0).line() + line + "\n")
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 2, is no run"):
        carry_out(TABLE1, tmp_path, None)


COMMITTED = [
    experiment.name
    for experiment in EXPERIMENTS.values()
    if findings_path(RESULTS, "small", experiment.name).exists()
    and experiment.configs("small")
    and experiment.needs != "weights"
]


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_findings_follow_from_the_committed_ledger(name: str, tmp_path: Path) -> None:
    shutil.copy(RESULTS / LEDGER, tmp_path)
    carry_out(EXPERIMENTS[name], tmp_path, None, "small")
    kept = Findings.read(findings_path(RESULTS, "small", name))
    assert Findings.read(findings_path(tmp_path, "small", name)) == kept


def test_a_run_of_the_ledger_is_not_trained_with_its_group(tmp_path: Path) -> None:
    """All runs are in it, and of a group one has lost its folder."""
    carry_out(TABLE1, tmp_path, Serial("cpu"))
    shutil.rmtree(sweep_folder(tmp_path).run(TABLE1.configs("smoke")[0]))
    events = list[Event]()
    findings, _ = conduct(TABLE1, "smoke", tmp_path, Serial("cpu"), device="cpu", report=events.append)
    assert findings.is_complete
    assert not events


def test_nothing_finished_leaves_nothing(tmp_path: Path) -> None:
    assert carry_out(TABLE1, tmp_path, None).is_empty
    assert not list(tmp_path.iterdir())


def test_a_smaller_grid_loses_no_findings(tmp_path: Path) -> None:
    """Runs that nobody asks for any more are not missed; of those still asked for, each one is."""
    everything, fewer = tiny(EXPERIMENTS["table1"], seed=[1, 2]), tiny(EXPERIMENTS["table1"], seed=[1])
    carry_out(everything, tmp_path, Serial("cpu"))
    assert carry_out(fewer, tmp_path, None).is_complete
    carry_out(everything, tmp_path, None)
    shutil.rmtree(sweep_folder(tmp_path).path)
    lost = name_of(fewer.configs("smoke")[0])
    kept = [entry for name, entry in read_ledger(tmp_path).items() if name != lost]
    (tmp_path / LEDGER).unlink()
    write_ledger(tmp_path, kept)
    with pytest.raises(ValueError, match="has findings of 12 runs, and only 5 are finished"):
        carry_out(fewer, tmp_path, None)
