"""What a group goes on from after an interruption: one file, replaced after each epoch."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rebased.files import replacing
from rebased.training.replicas import Record

__all__ = ["Checkpoint", "History", "read_checkpoint", "write_checkpoint"]

History = dict[int, list[Record]]
"""All records of each run so far, by its index in the group."""
_KEY = "training"
"""The one entry of the file's metadata."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after an epoch, before the runs that finished in it leave."""

    epoch: int
    active: list[int]
    history: History
    tensors: dict[str, Tensor]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    from safetensors.torch import save_file

    history = {index: list(map(dataclasses.asdict, records)) for index, records in checkpoint.history.items()}
    state = {"epoch": checkpoint.epoch, "active": checkpoint.active, "history": history}
    with replacing(path) as partial:
        save_file(checkpoint.tensors, partial, metadata={_KEY: json.dumps(state)})


def read_checkpoint(path: Path) -> Checkpoint | None:
    """None if there is none; ValueError, saying what to do, if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dictionary
        history = {int(index): [Record(**record) for record in records] for index, records in state["history"].items()}
        return Checkpoint(state["epoch"], state["active"], history, tensors)
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}); without it the group begins anew") from error
