"""TensorBoard has every epoch once, whatever happened; Weights & Biases gets the same when asked."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sweep_cases import FakeReplicas, tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rebased.training import boards, execute
from rebased.training.checkpoint import Checkpoint
from rebased.training.events import Event
from rebased.training.execute import GroupTask, train_group
from rebased.training.folders import SweepFolder, name_of
from rebased.training.plan import Group
from rebased.training.replicas import Record

GROUP = Group((tiny(seed=9),), micro_batches=1)
(RUN,) = GROUP.configs


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "Replicas", FakeReplicas)


def ignore(event: Event) -> None:
    pass


def shown(folder: Path) -> list[tuple[int, float]]:
    """Steps and values as TensorBoard shows them."""
    events = EventAccumulator(str(folder / "tb"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"accuracy", "loss", "learning_rate"}
    return [(event.step, round(event.value, 4)) for event in events.Scalars("accuracy")]


def test_tensorboard_has_every_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed after showing an epoch and before saving it: it is shown again, in place of the first time."""

    class KilledError(BaseException):
        pass

    write = execute.write_checkpoint

    def killed(path: Path, checkpoint: Checkpoint) -> None:
        if checkpoint.epoch == 3:
            raise KilledError
        write(path, checkpoint)

    task = GroupTask(tmp_path, GROUP)
    monkeypatch.setattr(execute, "write_checkpoint", killed)
    with pytest.raises(KilledError):
        train_group(task, "cpu", ignore)
    monkeypatch.setattr(execute, "write_checkpoint", write)
    train_group(task, "cpu", ignore)
    assert shown(SweepFolder(tmp_path).run(RUN)) == [(1, 0.01), (2, 0.02), (3, 0.03), (4, 0.04)]


class FakeWandB(ModuleType):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.told: list[Any] = []
        self.summary: dict[str, Any] = {}

    def init(self, **settings: Any) -> "FakeWandB":
        self.told.append(settings)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.told.append((step, values["accuracy"]))

    def finish(self) -> None:
        self.told.append("finished")


def test_weights_and_biases_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    train_group(GroupTask(tmp_path, GROUP, wandb_project="p"), "cpu", ignore)
    settings, *rest = wandb.told
    assert settings["project"] == "p"
    assert settings["id"] == name_of(RUN)
    assert settings["config"] == RUN.to_dict()
    assert settings["resume"] == "allow"
    assert rest == [(1, 0.01), (2, 0.02), (3, 0.03), (4, 0.04), "finished"]
    assert wandb.summary == {"finished": "epochs"}


def test_what_is_open_is_closed_if_weights_and_biases_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where nobody is logged in."""

    def refuse(**_: Any) -> None:
        raise RuntimeError("not logged in")

    def close(self: boards.TensorBoard, finished: str | None = None) -> None:
        original(self, finished)
        closed.append(self._writer.log_dir)

    wandb, original, closed = FakeWandB(), boards.TensorBoard.close, list[Path]()
    monkeypatch.setattr(wandb, "init", refuse)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(boards.TensorBoard, "close", close)
    with pytest.raises(RuntimeError, match="not logged in"):
        train_group(GroupTask(tmp_path, GROUP, wandb_project="p"), "cpu", ignore)
    assert closed == [SweepFolder(tmp_path).run(RUN) / "tb"]


def test_boards_of_other_runs_are_closed_if_one_cannot_be() -> None:
    closed = list[int]()

    class Fragile:
        def __init__(self, index: int) -> None:
            self.index = index

        def write(self, step: int, values: dict[str, float]) -> None: ...

        def close(self, finished: str | None = None) -> None:
            closed.append(self.index)
            raise OSError(f"board {self.index}")

    opened = boards.Boards(lambda index, epoch: [Fragile(index), Fragile(index)])
    for index in (0, 1):
        opened.write(index, Record(1, 0.5, 0.5, 1e-3, None))
    with pytest.raises(OSError, match="board"):
        opened.close()
    assert sorted(closed) == [0, 0, 1, 1]


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_absent_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rebased.training.packages.find_spec", lambda name: None if name == package else object())
    with pytest.raises(ImportError, match=f"training needs {package}: pip install {package}"):
        boards.check_packages(wandb=True)
