"""`rebased paper`: what it lists, runs and refuses."""

import dataclasses
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rebased.cli import paper
from rebased.cli.app import app
from rebased.paper.experiment import Experiment
from rebased.paper.ledger import LEDGER
from rebased.paper.registry import EXPERIMENTS

SMALL = {
    "run": {
        "stack": ["based", "x2"],
        "d_model": 12,
        "seq_len": 16,
        "task_options": {"num_pairs": 2},
        "learning_rate": 1e-2,
        "seed": [1, 2],
        "vocab_size": 40,
        "num_train": 32,
        "num_test": 8,
        "batch_size": 16,
        "epochs": 1,
    }
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments, of which one has runs, of a second."""
    grids = dict(EXPERIMENTS["table1"].grids) | {"smoke": SMALL}
    few: dict[str, Experiment] = {
        "table1": dataclasses.replace(EXPERIMENTS["table1"], grids=grids),
        "table9": EXPERIMENTS["table9"],
    }
    monkeypatch.setattr(paper, "EXPERIMENTS", few)
    monkeypatch.setattr(paper, "find_experiments", lambda names: list(few.values()))


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["paper", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


@pytest.mark.usefixtures("small")
def test_from_nothing_to_a_report(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "new")]
    status, said = run("list", *out)
    assert status == 0
    assert [line.split()[-2:] for line in said.splitlines()[1:]] == [["none", "yet"]] * 2
    assert "0/4" in said

    status, said = run("run", "all", *out, "--device", "cpu")
    assert status == 0, said
    assert "Table 1 and Figure 3: ablation" in said
    assert "3 of 3 counts are the paper's to the unit." in said
    assert said.count("The paper: ") == 1  # of the counts: smoke says nothing of what is true
    assert "table1: scale smoke (a minute on a CPU: whether it works, not what is true); 4 of 4 runs" in said
    assert (tmp_path / "new" / "smoke" / "figure3.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "new" / "smoke" / "figure3.svg").exists()

    status, said = run("list", *out)
    table1, table9 = said.splitlines()[1:]
    assert table1.rstrip().endswith("smoke (4 runs)")
    assert table9.rstrip().endswith("smoke")
    assert "4/4" in table1

    status, said = run("report", *out)
    assert status == 0, said
    assert "report.html: 2 of 2 tables and figures" in said
    page = (tmp_path / "new" / "report.html").read_text()
    assert "126,807,552" in page

    status, said = run("report", *out, "--scale", "paper")
    assert status == 1
    assert "there are no findings of scale paper" in said
    assert (tmp_path / "new" / "report.html").read_text() == page


@pytest.mark.usefixtures("small")
def test_part_of_the_runs(tmp_path: Path) -> None:
    """The rest is left for later; what is finished counts, where whole cells are."""
    status, said = run(
        "run", "all", "--out", str(tmp_path), "--device", "cpu", "--only", "stack=x2", "--only", "seed=1,2"
    )
    assert status == 0, said
    assert "2 of 4 runs" in said
    assert f"findings and pictures are in {tmp_path / 'smoke'};" in said
    status, said = run("run", "all", "--out", str(tmp_path), "--device", "cpu", "--only", "seed=2")
    assert "3 of 4 runs (1 not in these numbers: others of their cell are not finished)" in said


def test_help_names_all_that_can_be_run() -> None:
    """Messages offered figure3, figure5 and figure8, which show within other tables."""
    _, said = run("run", "--help")
    for name in (*EXPERIMENTS, "figure3", "figure5", "figure8"):
        assert name in said


def test_where_nothing_is_finished(tmp_path: Path) -> None:
    """It was said that findings and pictures are in a folder that there is not."""
    status, said = run("run", "table1", "--scale", "small", "--no-train", "--out", str(tmp_path))
    assert status == 0
    assert f"nothing is finished at scale small in {tmp_path}; without --no-train it is trained" in said
    assert "findings and pictures" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "table7"], "there is no 'table7'; there are figure1,"),
        (["run", "table1", "--scale", "huge"], "scale='huge' is unknown; there are smoke, small, paper"),
        (["run", "table1", "--device", "tpu"], "device='tpu'"),
        (["run", "table1", "--only", "stack=mamba"], "no run has stack=mamba; there are based,"),
        (["run", "table1", "--only", "seq_len=256"], "(at scale smoke; --scale may be smoke, small, paper)"),
        (["run", "table1", "--only", "stack=x2", "--no-train"], "--only chooses what is trained"),
        (["report", "--scale", "huge"], "scale='huge' is unknown"),
        (["report"], "there is no folder"),
        (["run", "table1", "--no-train"], "there is no folder"),
    ],
    ids=" ".join,
)
def test_bad_values_end_before_any_work(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "conduct", lambda *_, **__: pytest.fail("work was begun"))
    status, said = run(*arguments, "--out", str(tmp_path / "none"))
    assert status == 2
    assert message in said.replace("\n", " ")
    assert not (tmp_path / "none").exists()


def test_this_machine_need_not_have_what_the_cluster_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head node without a GPU was refused, though Ray trains on other machines; it measures on its own CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    engines: list[tuple[str | None, str]] = []
    places: list[str] = []

    def conduct(*_: object, device: str, **__: object) -> None:
        places.append(device)
        raise RuntimeError("far enough")

    monkeypatch.setattr(paper, "choose_engine", lambda name, device, *_: engines.append((name, device)))
    monkeypatch.setattr(paper, "conduct", conduct)
    asked = ["run", "table9", "--engine", "ray", "--device", "cuda", "--out", str(tmp_path)]
    _, said = run(*asked)
    assert "table9: far enough" in said
    assert (engines, places) == ([("ray", "cuda")], ["cpu"])
    status, said = run(*asked, "--no-train")
    assert status == 2
    assert "torch sees no CUDA device" in said.replace("\n", " ")


@pytest.mark.usefixtures("small")
def test_spoilt_findings_are_named(tmp_path: Path) -> None:
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / "table9.json").write_text("{")
    status, said = run("report", "--out", str(tmp_path))
    assert status == 1
    assert "table9.json has no findings" in said


@pytest.mark.usefixtures("small")
def test_a_spoilt_ledger_is_named_and_trying_again_is_no_help(tmp_path: Path) -> None:
    (tmp_path / LEDGER).write_text("<<<<<<<\n")
    for command in ("list", "run all --no-train"):
        status, said = run(*command.split(), "--out", str(tmp_path))
        assert status == 1
        assert "line 1, is no run" in said.replace("\n", " ")
        assert "tries again" not in said
