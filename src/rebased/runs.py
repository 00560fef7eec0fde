"""The run directory: what a result is, on disk.

``config.json`` says what was run, ``metrics.jsonl`` has a line for each epoch, ``weights.safetensors`` the weights at
the end and ``result.json`` the outcome. The result is written last: a directory that has one is complete.
"""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebased.files import replacing, write_json, write_text

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Run",
    "find_runs",
    "is_finished",
    "read_run",
    "run_name",
    "write_config",
    "write_metrics",
    "write_result",
    "write_weights",
]

CONFIG = "config.json"
METRICS = "metrics.jsonl"
RESULT = "result.json"
WEIGHTS = "weights.safetensors"
TRAINING = "training.json"
"""Beside a language model: what its training came to."""


@dataclass(frozen=True)
class Run:
    """A run that has ended, as it lies on disk."""

    folder: Path
    config: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    """An entry for each epoch. What was not finite is NaN."""
    result: dict[str, Any]

    def weights(self) -> "dict[str, Tensor]":
        """Read from disk at each call."""
        from safetensors.torch import load_file

        return load_file(self.folder / WEIGHTS)


def run_name(config: dict[str, Any], prefix: str = "run") -> str:
    """``prefix``, for people, and a hash of the config, which decides."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{prefix}-{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"


def is_finished(folder: Path) -> bool:
    return (folder / RESULT).is_file()


def read_run(folder: Path | str) -> Run:
    """A finished run. ValueError, naming the file, for what is not one."""
    folder = Path(folder)
    if not is_finished(folder):
        raise ValueError(f"folder={str(folder)!r} is no finished run: it has no {RESULT}")
    config, result = (_read_json(folder / name, _read_text(folder / name)) for name in (CONFIG, RESULT))
    lines = _read_text(folder / METRICS).splitlines()
    metrics = (_read_json(folder / METRICS, line) for line in lines)
    return Run(folder, config, tuple(_with_nan(entry) for entry in metrics), result)


def find_runs(folder: Path | str) -> Iterator[Run]:
    """The finished runs in this folder and those below it, by name. ValueError if there is no such folder."""
    if not Path(folder).is_dir():
        raise ValueError(f"folder={str(folder)!r} is no folder")
    return (read_run(path.parent) for path in sorted(Path(folder).rglob(RESULT)))


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Make the run's directory. ValueError if it is another run's."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIG
    if not path.exists():
        write_json(path, config, sort_keys=True)
        return
    # A version that knew fewer fields may have written it.
    written = _read_json(path, _read_text(path))
    if differing_fields(written, config):
        raise ValueError(f"{path} is the config of another run")


def differing_fields(written: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Fields of which a config on disk says something else. One that it lacks did not exist when it was written."""
    return [name for name, value in written.items() if name not in config or config[name] != value]


def write_metrics(folder: Path, metrics: Iterable[dict[str, Any]], *, durable: bool = True) -> None:
    """All lines, anew."""
    write_text(folder / METRICS, "".join(map(metrics_line, metrics)), durable=durable)


def metrics_line(entry: dict[str, Any]) -> str:
    """Numbers that are not finite become null, which any reader of JSON takes."""
    return json.dumps(_without_nan(entry), allow_nan=False) + "\n"


def write_weights(folder: Path, weights: "dict[str, Tensor]") -> None:
    from safetensors.torch import save_file

    with replacing(folder / WEIGHTS) as partial:
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, partial)


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """What makes the run a finished one; nothing of it may be written after this."""
    write_json(folder / RESULT, result, sort_keys=True)


def check_vacant(folder: Path, what: str, *, first: str, others: Collection[str] = ()) -> None:
    """ValueError if files of somebody else are there.

    The folder is ours if it holds ``first``, which we write before all else but ``others`` and hidden files (locks, and
    what is half-written). Without it, only these may be there.
    """
    # Listed before looking for `first`, so that a process that begins meanwhile is not taken for a stranger.
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    strangers = {name for name in names if not name.startswith(".")} - {*others}
    if strangers and not (folder / first).exists():
        raise ValueError(f"{folder} is neither empty nor {what}: there is no {first}; choose another folder")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error


def _read_json(path: Path, text: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    return value


def _without_nan(entry: dict[str, Any]) -> dict[str, Any]:
    unwritable = [name for name, value in entry.items() if isinstance(value, float) and not math.isfinite(value)]
    return entry | dict.fromkeys(unwritable)


def _with_nan(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in entry.items()}
