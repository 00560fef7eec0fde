"""Checkpoints on disk. One counts from the moment its marker exists, which is written when all else is on the disk."""

import shutil
import zipfile
from pathlib import Path

from rebased.files import sync, write_text

__all__ = [
    "CHECKPOINTS",
    "MARKER",
    "CheckpointError",
    "check_readable",
    "checkpoint_steps",
    "is_sharded",
    "last_checkpoint",
    "mark",
    "name_of",
    "prune",
    "remove",
    "step_of",
]

CHECKPOINTS = "checkpoints"
"""The folder of a run's."""
MARKER = "complete"
_PREFIX = "checkpoint-"  # as transformers has it


class CheckpointError(RuntimeError):
    """A checkpoint could not be written; earlier ones are as they were."""


def name_of(step: int) -> str:
    return f"{_PREFIX}{step}"


def checkpoint_steps(folder: Path) -> list[int]:
    """The steps of those that count, in order."""
    return sorted(step_of(path) for path in _found(folder) if (path / MARKER).is_file())


def last_checkpoint(folder: Path) -> Path | None:
    steps = checkpoint_steps(folder)
    return folder / name_of(steps[-1]) if steps else None


def is_sharded(checkpoint: Path) -> bool:
    """Whether a sharded run (FSDP) wrote it; transformers tells by these names, too."""
    return any(checkpoint.glob("pytorch_model_fsdp*"))


def check_readable(checkpoint: Path) -> None:
    """ValueError, saying what to do, for files that are cut short in spite of the marker, as by a failing disk."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(checkpoint.iterdir()):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt"):
                    continue
            if path.suffix in (".pt", ".pth") and not zipfile.is_zipfile(path):
                raise ValueError("it is no file of torch's")
        except (SafetensorError, ValueError, OSError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}); without {checkpoint} the same command goes on from the one before"
            ) from error


def mark(checkpoint: Path) -> None:
    """Make it count: once everything in it is on the disk, not before."""
    for path in (*checkpoint.rglob("*"), checkpoint):
        sync(path)
    write_text(checkpoint / MARKER, "")
    sync(checkpoint.parent)


def prune(folder: Path, keep: int = 0) -> None:
    """Remove what does not count, and all but the last ``keep`` of those that do; 0 keeps them all."""
    steps = checkpoint_steps(folder)
    kept = {name_of(step) for step in steps[-keep:]}
    for path in _found(folder):
        if path.name not in kept:
            remove(path)


def remove(checkpoint: Path) -> None:
    """The marker goes first: half a checkpoint must not count."""
    (checkpoint / MARKER).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def _found(folder: Path) -> list[Path]:
    return [path for path in folder.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdecimal()]


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))
