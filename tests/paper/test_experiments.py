"""What all tables and figures have in common: grids, findings, and that they run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from paper_cases import make_run, tiny

from current_device import watch_current
from rebased.analysis.pages import Section, Table
from rebased.models import STACKS
from rebased.paper.conduct import conduct, sweep_folder
from rebased.paper.experiment import SCALES, Experiment, Material
from rebased.paper.findings import Findings, findings_path, machines_of, read_findings
from rebased.paper.ledger import LEDGER
from rebased.paper.recipes import ALPHA
from rebased.paper.registry import EXPERIMENTS, find_experiments
from rebased.training.engines import Serial
from rebased.training.events import Event, Planned
from rebased.training.folders import name_of
from rebased.training.log import read_log

ALL = list(EXPERIMENTS.values())


@pytest.mark.parametrize("experiment", ALL, ids=lambda each: each.name)
@pytest.mark.parametrize("scale", SCALES)
def test_grids_are_possible(experiment: Experiment, scale: str) -> None:
    """Every run is checked when it is made; beyond smoke, task and model are the paper's."""
    configs = experiment.configs(scale)
    assert {config.stack for config in configs} <= set(STACKS)
    if scale != "smoke":
        assert {config.vocab_size for config in configs} <= {8192}
        assert {config.num_train for config in configs} <= {100_000}
        assert {config.epochs for config in configs} <= {64}
    assert all(not config.model_options for config in configs)


def test_the_small_runs_are_among_the_papers() -> None:
    """So what one scale trains another need not train again."""
    small, paper = (
        {name_of(config) for experiment in ALL for config in experiment.configs(scale)} for scale in ("small", "paper")
    )
    assert small <= paper


def test_table_1_is_the_papers() -> None:
    assert len(EXPERIMENTS["table1"].configs("paper")) == 960
    num_longer = 2 * 2 * 4 * 2  # two kernels at the longer length
    assert len(EXPERIMENTS["table1"].configs("small")) == 6 * 4 * 5 * 2 + num_longer


def test_the_device_asked_for_is_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on torch's current GPU: measured on cuda:1, on another one than the tensors'."""
    entered, seen = watch_current(monkeypatch, "rebased.paper.experiment.current"), list[str]()
    measured = replace(EXPERIMENTS["figure2"], measure=lambda material: {"seen": seen.extend(entered)})
    conduct(measured, "smoke", tmp_path, None, device="cuda:1", report=lambda event: None)
    assert (seen, entered) == (["cuda:1"], [])


def test_table_1s_longer_length_can_show_a_difference() -> None:
    """Its grid has runs enough for the test of pairs, if all go one way, also where all three outcomes' tests count."""
    runs = [
        make_run(**config.to_dict() | {"accuracy": 0.8 if config.stack == "rebased" else 0.5})
        for config in EXPERIMENTS["table1"].configs("small")
        if config.seq_len == 2048
    ]
    material = Material(scale="small", runs=tuple(runs), out=Path("nowhere"), device="cpu")
    (found,) = EXPERIMENTS["table1"].measure(material)["comparisons"]["2048"]["tuned"]
    assert (found["verdict"], found["adjusted_p"]) == ("b better", 2 / 2**8)
    assert 3 * found["adjusted_p"] < ALPHA


@pytest.mark.parametrize("experiment", ALL, ids=lambda each: each.name)
def test_carried_out_once(experiment: Experiment, tmp_path: Path) -> None:
    """Trained, measured, kept and shown; the second time nothing is left to train, and the same is found."""
    small, events = tiny(experiment), list[Event]()
    findings, failures = conduct(small, "smoke", tmp_path, Serial("cpu"), device="cpu", report=events.append)
    assert not failures
    assert findings.is_complete
    again, _ = conduct(small, "smoke", tmp_path, Serial("cpu"), device="cpu", report=events.append)
    assert [event.num_groups for event in events if isinstance(event, Planned)][1:] in ([], [0])
    assert again == findings
    kept = read_findings(tmp_path, "smoke", experiment.name)
    assert kept is not None
    assert kept.data == json.loads(json.dumps(findings.data))
    shown = small.present(dict(kept.data))
    assert isinstance(shown, Section)
    assert any(isinstance(part, Table) for part in shown.parts)


def test_all_may_be_named_with_others() -> None:
    assert find_experiments(["table1", "all"]) == find_experiments(["all"]) == list(EXPERIMENTS.values())


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(ValueError, match=r"there is no 'table7'; there are figure1, .*table9, figure3"):
        find_experiments(["table1", "table7"])
    with pytest.raises(ValueError, match="scale='huge' is unknown; there are smoke, small, paper"):
        EXPERIMENTS["table1"].configs("huge")


def test_figure_3_is_in_table_1() -> None:
    assert [each.name for each in find_experiments(["figure3", "table1", "table4"])] == ["table1", "table4"]
    assert find_experiments(["all"]) == ALL


def test_findings_that_are_none(tmp_path: Path) -> None:
    path = findings_path(tmp_path, "smoke", "table1")
    assert read_findings(tmp_path, "smoke", "table1") is None
    path.parent.mkdir()
    for text in ("{", "[]", '{"experiment": "table1"}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"table1\.json has no findings"):
            Findings.read(path)


def test_findings_of_another_form() -> None:
    with pytest.raises(ValueError, match=r"the findings of table1 are in another version's form .* --no-train"):
        EXPERIMENTS["table1"].section({"cells": [], "comparisons": {"256": []}, "more": 1} | {"comparisons": [1]})


def test_what_runs_were_made_with() -> None:
    assert machines_of([make_run("based", 0.5)] * 3) == [{"commit": "abc", "runs": 3}]


def test_training_time_is_what_the_logs_say(tmp_path: Path) -> None:
    experiment = tiny(EXPERIMENTS["figure10"])
    findings, _ = conduct(experiment, "smoke", tmp_path, Serial("cpu"), device="cpu", report=lambda event: None)
    logs = [entry for path in sweep_folder(tmp_path).path.rglob("log.jsonl") for entry in read_log(path)]
    spent = sum(entry["seconds"] + entry["seconds_to_save"] for entry in logs if entry["event"] == "epoch")
    assert findings.seconds == pytest.approx(spent, abs=0.06)


def test_findings_are_not_replaced_by_fewer(tmp_path: Path) -> None:
    """They may be all that is left of runs that were made elsewhere."""
    experiment = tiny(EXPERIMENTS["figure10"])
    conduct(experiment, "smoke", tmp_path, Serial("cpu"), device="cpu", report=lambda event: None)
    path = findings_path(tmp_path, "smoke", "figure10")
    before = path.read_bytes()
    shutil.rmtree(sweep_folder(tmp_path).path)
    (tmp_path / LEDGER).unlink()
    with pytest.raises(ValueError, match="findings of 5 runs, and only 0 are finished"):
        conduct(experiment, "smoke", tmp_path, None, device="cpu", report=lambda event: None)
    assert path.read_bytes() == before


def test_runs_of_a_version_that_knew_fewer_fields(tmp_path: Path) -> None:
    """They are the same runs, and of the same cells."""
    experiment = tiny(EXPERIMENTS["table1"])
    conduct(experiment, "smoke", tmp_path, Serial("cpu"), device="cpu", report=lambda event: None)
    first = next(sweep_folder(tmp_path).path.rglob("config.json"))
    config = json.loads(first.read_text())
    del config["watch"]
    first.write_text(json.dumps(config))
    findings, _ = conduct(experiment, "smoke", tmp_path, None, device="cpu", report=lambda event: None)
    assert [len(cell["seeds"]) for cell in findings.data["cells"]] == [2] * 6


def test_runs_wait_for_others_of_their_cell(tmp_path: Path) -> None:
    """The first of a group to be finished are those that are good enough, or diverged."""
    experiment = tiny(EXPERIMENTS["table1"], learning_rate=[1e-2, 1e30])
    whole, _ = conduct(experiment, "smoke", tmp_path, Serial("cpu"), device="cpu", report=lambda event: None)
    shutil.rmtree(sweep_folder(tmp_path).run(experiment.configs("smoke")[0]))
    findings_path(tmp_path, "smoke", "table1").unlink()
    (tmp_path / LEDGER).unlink()
    findings, _ = conduct(experiment, "smoke", tmp_path, None, device="cpu", report=lambda event: None)
    assert (findings.num_runs, findings.num_finished, findings.num_waiting) == (24, 23, 3)
    assert findings.data["cells"] == whole.data["cells"][1:]
    assert not findings.is_complete
