"""`rebased quickstart` trains, shows, writes and says where everything is."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rebased.cli import quickstart
from rebased.cli.app import app
from rebased.cli.quickstart_runs import MODELS, SEEDS, quickstart_note, quickstart_runs
from rebased.locks import locked
from rebased.runs import find_runs
from rebased.training import execute
from rebased.training.folders import SweepFolder
from rebased.training.plan import read_plan

FILES = {"report.html", "recall.png", "figure2.png", "figure2.svg"}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same runs with almost nothing to train, two processes fewer."""
    sizes = {"d_model": 8, "seq_len": 8, "vocab_size": 16, "task_options": {"num_pairs": 2}}
    training = {"num_train": 8, "num_test": 8, "batch_size": 4, "epochs": 2}
    configs = [config.but(**sizes, **training) for config in quickstart_runs("cpu")]
    monkeypatch.setattr(quickstart, "quickstart_runs", lambda device: configs)
    monkeypatch.setattr(quickstart, "_jobs", lambda device: 1)


def run(out: Path, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["quickstart", "--out", str(out), "--device", "cpu", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


@pytest.mark.usefixtures("tiny")
def test_trains_all_and_says_where_things_are(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    status, said = run(out)
    assert status == 0, said
    assert "24 runs, 0 finished; 4 groups to train" in said
    for name in MODELS.values():
        assert f"\n{name} " in said
    assert " ± " in said
    assert "too few to call a difference significant" in said
    assert {path.name for path in out.iterdir() if path.is_file()} >= FILES
    assert all(str(out / name) in said for name in FILES)
    assert {run.folder.parent for run in find_runs(out)} == {out / "runs"}
    page = (out / "report.html").read_text()
    assert f"<dt>torch</dt><dd>{torch.__version__}</dd>" in page
    assert "vocabulary 16" in page


@pytest.mark.usefixtures("tiny")
def test_while_another_process_trains_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    group = next(iter(read_plan(SweepFolder(tmp_path))))
    shutil.rmtree(SweepFolder(tmp_path).run(group.configs[0]))
    monkeypatch.setattr(execute, "locked", lambda path, what: locked(path, what, patience=0))
    with locked(SweepFolder(tmp_path).group(group.name).lock, "it"):
        status, said = run(tmp_path)
    assert status == 1, said
    assert f"another process is training in {tmp_path}" in said.replace("\n", "")
    status, said = run(tmp_path)
    assert status == 0, said


@pytest.mark.usefixtures("tiny")
def test_again_trains_nothing_and_shows_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    monkeypatch.setattr(execute, "Replicas", lambda *_, **__: pytest.fail("training was begun"))
    status, said = run(tmp_path)
    assert status == 0, said
    assert "24 runs, all finished: nothing to train" in said
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


@pytest.mark.usefixtures("tiny")
def test_without_the_logs_of_how_it_was_trained(tmp_path: Path) -> None:
    """The runs are all there; the report then says less of the machine."""
    run(tmp_path)
    shutil.rmtree(tmp_path / "groups")
    status, said = run(tmp_path)
    assert status == 0, said
    assert "24 runs, all finished: nothing to train" in said
    page = (tmp_path / "report.html").read_text()
    assert "vocabulary 16" in page
    assert "<dt>torch</dt>" not in page


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [(RuntimeError("no memory"), 1, "the same command tries again"), (KeyboardInterrupt(), 130, "goes on from here")],
    ids=["failed", "stopped"],
)
def test_no_report_about_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, expected: int, message: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(execute, "Replicas", refuse)
    status, said = run(tmp_path)
    assert status == expected
    assert message in said
    assert not (tmp_path / "report.html").exists()


def test_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, said = run(tmp_path / "out")
    assert status == 1
    assert "pip install matplotlib" in said
    assert not (tmp_path / "out").exists()


def test_takes_the_gpu_if_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stop(device: str) -> None:
        asked.append(device)
        raise KeyError

    monkeypatch.setattr(quickstart, "quickstart_runs", stop)
    for cuda in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        CliRunner().invoke(app, ["quickstart", "--out", str(tmp_path)])
    assert asked == ["cpu", "cuda"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_runs_differ_only_in_model_rate_and_seed(device: str) -> None:
    configs = quickstart_runs(device)
    assert {config.stack for config in configs} == MODELS.keys()
    assert {config.seed for config in configs} == set(SEEDS)
    rates = {config.learning_rate for config in configs}
    assert len(configs) == len(MODELS) * len(SEEDS) * len(rates)
    own = ("stack", "learning_rate", "seed", "model_options")
    assert len({str({k: v for k, v in config.to_dict().items() if k not in own}) for config in configs}) == 1
    heads = {
        config.model().layers[-1].options.get("num_heads") for config in configs if "attention" not in config.stack
    }
    assert len(heads) == 1
    assert str(heads.pop() or "the paper's") in quickstart_note(device)


@pytest.mark.parametrize(
    ("device", "cpus", "jobs"), [("cpu", 2, 2), ("cpu", 64, len(MODELS)), ("cuda", 64, 1), ("cuda:1", 64, 1)]
)
def test_a_process_for_each_model_if_there_are_so_many_processors(
    device: str, cpus: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart, "usable_cpus", lambda: cpus)
    assert quickstart._jobs(device) == jobs
