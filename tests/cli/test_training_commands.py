"""`rebased mqar` and `rebased sweep`: what they train, print and refuse."""

import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from commands import run
from rebased.cli import train as train_module
from rebased.cli.app import app
from rebased.locks import LockedError
from rebased.runs import find_runs
from rebased.training import execute
from rebased.training.engines import Serial

TINY = {
    "stack": "rebased",
    "d-model": 12,
    "seq-len": 16,
    "num-pairs": 4,
    "vocab-size": 32,
    "num-train": 32,
    "num-test": 16,
    "batch-size": 16,
    "epochs": 2,
    "learning-rates": "1e-3,1e30",
    "seeds": "1,2",
    "device": "cpu",
}
MQAR = ["mqar", *(f"--{name}={value}" for name, value in TINY.items())]
GRID = """
[run]
stack = ["rebased", "x2"]
d_model = 12
seq_len = 16
task_options.num_pairs = [2, 4]
vocab_size = 32
num_train = 32
num_test = 16
batch_size = 16
epochs = 1
learning_rate = 1e-3
seed = [1, 2]
"""


def test_mqar_trains_a_cell_and_says_how_it_went(tmp_path: Path) -> None:
    status, said = run(*MQAR, "--out", tmp_path / "new")
    assert status == 0
    assert "4 runs, 0 finished; 1 group to train" in said
    assert re.search(r"rebased 12 16 0\.001 of 2 0\.\d{3} ± 0\.\d{3} 2 2 2 all epochs", said)
    assert f"runs are in {tmp_path / 'new' / 'runs'}" in said
    found = {(run.config["learning_rate"], run.config["seed"]): run for run in find_runs(tmp_path)}
    assert found.keys() == {(1e-3, 1), (1e-3, 2), (1e30, 1), (1e30, 2)}
    assert found[1e30, 1].result["finished"] == "diverged"
    assert found[1e-3, 1].config["task_options"] == {"num_pairs": 4}


def test_mqar_again_trains_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(*MQAR, "--out", tmp_path)
    monkeypatch.setattr(execute, "Replicas", lambda *_, **__: pytest.fail("training was begun"))
    status, said = run(*MQAR, "--out", tmp_path)
    assert status == 0
    assert "4 runs, all finished: nothing to train" in said
    table = "stack d_model"
    assert said.partition(table)[2] == first[1].partition(table)[2]


def test_a_model_that_cannot_be_built_leaves_no_folder(tmp_path: Path) -> None:
    status, said = run(*MQAR, "--d-model", "8", "--out", tmp_path / "new" / "out")
    assert status == 1
    assert "the model of rebased-d8-L16 cannot be built: num_heads=12 must be at most d_model=8" in said
    assert not (tmp_path / "new").exists()


def test_unwritable_out_ends_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Serial, "fitting", lambda *_: pytest.fail("work was begun"))
    (tmp_path / "file").write_text("")
    status, said = run(*MQAR, "--out", tmp_path / "file" / "out")
    assert status == 1
    assert said.startswith("error: [Errno 20] Not a directory")


def test_sweep_trains_a_grid(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text(GRID)
    status, said = run("sweep", grid, "--out", tmp_path / "out", "--device", "cpu")
    assert status == 0
    assert "stack d_model seq_len num_pairs learning rate accuracy seeds epochs ended" in said
    for row in ("rebased 12 16 2", "rebased 12 16 4", "x2 12 16 2", "x2 12 16 4"):
        assert row in said
    assert len(list(find_runs(tmp_path))) == 8


def test_summary_shows_layers_of_ones_own(tmp_path: Path) -> None:
    """Two models of one stack, which they have nothing of, were both called by its name."""
    grid = tmp_path / "grid.toml"
    layers = "[[{mixer='short_conv'}, {mixer='rebased', options={num_heads=2}}], [{mixer='rebased', norm='rms'}]]"
    one_cell = GRID.replace('["rebased", "x2"]', '"x2"').replace("[2, 4]", "4")
    grid.write_text(f"{one_cell}model_options.layers = {layers}\n")
    status, said = run("sweep", grid, "--out", tmp_path / "out", "--device", "cpu")
    assert status == 0
    assert re.search("short_conv.rebased-d12-L16-2x-[0-9a-f]+ begins", said)
    assert "stack d_model seq_len learning rate" in said
    table = said.partition("stack d_model")[2].replace(" ", "")
    assert "short_conv+rebased(num_heads=2)1216" in table
    assert "rebased(norm=rms)1216" in table
    assert "x2" not in table


def test_failed_group_ends_with_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(execute, "Replicas", refuse)
    status, said = run(*MQAR, "--out", tmp_path)
    assert status == 1
    assert "failed: RuntimeError: out of memory; the traceback is in" in said
    assert "1 group failed: rebased-d12-L16-4x-" in said


def test_only_what_is_foreseen_is_told_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ending_with(error: Exception) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("rebased.training.sweep.extend_plan", refuse)

    ending_with(LockedError("the plan is in use by process 7"))
    assert run(*MQAR, "--out", tmp_path) == (1, "error: the plan is in use by process 7")
    ending_with(RuntimeError("no reason of ours"))
    result = CliRunner().invoke(app, [*MQAR, "--out", str(tmp_path)])
    assert isinstance(result.exception, RuntimeError)


def test_stopped_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "Replicas", stop)
    status, said = run(*MQAR, "--out", tmp_path)
    assert status == 130
    assert "stopped; the same command goes on from here" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stack", "rebasd"], "stack='rebasd' is unknown; there are"),
        (["--num-pairs", "5"], "num_pairs=5"),
        (["--learning-rates", "fast"], "learning-rates='fast' is not a list of numbers"),
        (["--learning-rates", ","], "no alternatives for learning_rate: the list is empty"),
        (["--seeds", "1,1"], "comes twice"),
        (["--dtype", "int8"], "dtype='int8' is unknown"),
        (["--device", "cuda"], "device='cuda' was asked for, but torch sees no CUDA device"),
        (["--jobs", "0"], "jobs=0 must be at least 1"),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) else "",
)
def test_bad_values_end_before_any_work(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(train_module, "run_sweep", lambda *_, **__: pytest.fail("work was begun"))
    status, said = run(*MQAR, *arguments)
    assert status == 2
    assert message in said


def test_bad_grid_ends_before_any_work(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    grid.write_text("[run]\nwidth = 3")
    status, said = run("sweep", grid, "--out", tmp_path / "out")
    assert status == 2
    assert "RecallConfig has no width; there are" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["mqar", "sweep"])
def test_what_is_in_a_folder_stays_alone_there(command: str, tmp_path: Path) -> None:
    grid, out = tmp_path / "grid.toml", tmp_path / "out"
    grid.write_text(GRID)
    out.mkdir()
    (out / "book.txt").write_text("text")
    arguments = MQAR if command == "mqar" else ["sweep", grid, "--device", "cpu"]
    status, said = run(*arguments, "--out", out)
    assert status == 1
    assert f"{out} is neither empty nor a sweep: there is no plan.json; choose another folder" in said
    assert [path.name for path in out.iterdir()] == ["book.txt"]


def test_a_sweep_killed_at_its_first_file_begins_anew(tmp_path: Path) -> None:
    for name in ("plan.lock", ".plan.json.partial"):
        (tmp_path / name).touch()
    status, said = run(*MQAR, "--out", tmp_path)
    assert status == 0, said


def test_runs_without_their_plan_are_a_sweep(tmp_path: Path) -> None:
    """As somebody may have copied them."""
    run(*MQAR, "--out", tmp_path)
    for name in ("plan.json", "plan.lock"):
        (tmp_path / name).unlink()
    status, said = run(*MQAR, "--out", tmp_path)
    assert status == 0, said
    assert "all finished" in said


def test_a_sweep_may_lie_beside_other_files(tmp_path: Path) -> None:
    run(*MQAR, "--out", tmp_path)
    (tmp_path / "log.txt").write_text("")
    status, said = run(*MQAR, "--out", tmp_path)
    assert status == 0, said


def test_absent_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebased.training.packages.find_spec", lambda name: None if name == "wandb" else object())
    status, said = run(*MQAR, "--out", tmp_path, "--wandb", "project")
    assert status == 1
    assert "pip install wandb" in said
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "grid.toml").write_text(GRID)
    status, said = run("sweep", tmp_path / "grid.toml", "--out", tmp_path / "out", "--engine", "ray")
    assert status == 1
    assert "pip install ray" in said
