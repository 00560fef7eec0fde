"""A run's folder: what it was told to be, written first, and what became of it, written last.

``run.json`` has the configuration, ``metrics.jsonl`` a line for each step, ``checkpoints/`` what a killed run goes on
from, ``error.txt`` where the last try failed, if it did. At the end the model and its tokenizer lie beside them, as
transformers has them, and ``training.json``.
"""

import datetime
import json
import os
import shutil
import traceback
from pathlib import Path
from typing import Any

from rebased.corpora import Corpus
from rebased.files import sync, write_json
from rebased.runs import TRAINING, check_vacant
from rebased.training.language.checkpoints import CHECKPOINTS, is_sharded, last_checkpoint
from rebased.training.language.config import LanguageRunConfig

__all__ = [
    "ERROR",
    "RUN",
    "add_error",
    "adopt_model",
    "begin",
    "check_same_run",
    "check_sharding",
    "describe_run",
    "has_begun",
    "read_training",
    "write_training",
]

RUN = "run.json"
ERROR = "error.txt"


def describe_run(config: LanguageRunConfig, corpus: Corpus) -> dict[str, Any]:
    """All that must be the same for a run to be gone on with."""
    text = {
        "content": corpus.content_hash,
        "tokenizer": corpus.tokenizer_hash,
        "vocab_size": corpus.vocab_size,
        "train_tokens": corpus.split("train").num_tokens,
    }
    return config.to_dict() | {"corpus": text}


def check_same_run(folder: Path, described: dict[str, Any]) -> None:
    """ValueError, naming what differs, if the folder is another run's, or holds files of somebody else."""
    check_vacant(folder, "a run", first=RUN)
    path = folder / RUN
    if not path.exists():
        return
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    # A version that knew fewer fields may have written it: what it lacks was as the defaults are.
    theirs = _flat(LanguageRunConfig().to_dict() | written)
    ours = _flat(json.loads(json.dumps(described)))
    differing = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    if differing and has_begun(folder):
        told = "; ".join(f"{name}={ours.get(name)!r}, there {theirs.get(name)!r}" for name in differing)
        raise ValueError(f"{folder} is another run's: {told}; choose another folder, or the same options")


def check_sharding(folder: Path, *, sharded: bool) -> None:
    """ValueError if the checkpoint to go on from is of the other kind; from a finished run nobody goes on."""
    checkpoint = last_checkpoint(folder / CHECKPOINTS)
    if checkpoint is None or is_sharded(checkpoint) == sharded or (folder / TRAINING).exists():
        return
    kind = "not sharded" if sharded else "sharded"
    raise ValueError(f"fsdp={sharded} cannot go on from {checkpoint}, which is {kind}; use fsdp={not sharded}")


def has_begun(folder: Path) -> bool:
    """Whether there is anything to go on from; else a folder is free for other options."""
    return (folder / TRAINING).exists() or last_checkpoint(folder / CHECKPOINTS) is not None


def begin(folder: Path, described: dict[str, Any]) -> None:
    (folder / ERROR).unlink(missing_ok=True)  # of an earlier try
    if not has_begun(folder):
        write_json(folder / RUN, described)


def add_error(folder: Path, error: Exception, *, rank: int) -> Path | None:
    """Write down where a process failed, after what others have written: the first of them may have ended the rest.

    The file, or None if it cannot be written: the disk may be full.
    """
    path, date = folder / ERROR, datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    text = "".join(traceback.format_exception(error))
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{date}, process {rank}\n{text}\n")
    except OSError:
        return None
    return path


def read_training(folder: Path) -> dict[str, Any] | None:
    """What became of the run; None while it is not finished."""
    path = folder / TRAINING
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def write_training(folder: Path, facts: dict[str, Any]) -> None:
    write_json(folder / TRAINING, facts)


def adopt_model(source: Path, folder: Path) -> None:
    """Move a saved model's files here, also those in folders of it, each by rename: nobody sees half of one."""
    mode = (folder / RUN).stat().st_mode  # as the user has it; some libraries make files that nobody else may read
    for path in [each for each in source.rglob("*") if each.is_file()]:
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        sync(path)
        os.replace(path, target)
    shutil.rmtree(source)


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, each in value.items():
        flat |= _flat(each, f"{prefix}{name}.") if isinstance(each, dict) else {f"{prefix}{name}": each}
    return flat
