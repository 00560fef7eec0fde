"""How far a preparation has come: one small file, replaced at each commit, that says how much of every other counts."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rebased.corpora.manifest import SPLITS, StoredFile
from rebased.files import write_json

__all__ = ["STATE", "OpenDocument", "SplitState", "State", "read_state", "write_state"]

STATE = "unfinished.json"


@dataclass(frozen=True)
class SplitState:
    """How much of a split's files counts."""

    shards: tuple[StoredFile, ...] = ()
    """Those that are full."""
    rest: int = 0
    """Bytes of the shard that is being filled."""
    num_tokens: int = 0
    num_documents: int = 0
    num_bytes: int = 0


@dataclass(frozen=True)
class OpenDocument:
    """One of which some pieces are written and others are not."""

    split: str
    set_id: int
    num_bytes: int
    """Of the pieces that are written."""


@dataclass(frozen=True)
class State:
    """Where a preparation goes on."""

    request: dict[str, Any]
    input: int
    """The number of the input that is being read."""
    pieces: int
    """How many of its pieces are written."""
    document: OpenDocument | None
    sets: tuple[str, ...]
    splits: dict[str, SplitState]

    @classmethod
    def at_the_beginning(cls, request: dict[str, Any]) -> "State":
        return cls(request, 0, 0, None, (), {name: SplitState() for name in SPLITS})


def write_state(folder: Path, state: State) -> None:
    write_json(folder / STATE, asdict(state), sort_keys=True)


def read_state(folder: Path) -> State:
    """ValueError, saying what to do, for what is none of ours."""
    path = folder / STATE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        document = value["document"]
        splits = {name: _split(value["splits"][name]) for name in SPLITS}
        return State(
            request=value["request"],
            input=int(value["input"]),
            pieces=int(value["pieces"]),
            document=None if document is None else OpenDocument(**document),
            sets=tuple(value["sets"]),
            splits=splits,
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error!r}); delete {folder} and prepare it anew") from error


def _split(value: dict[str, Any]) -> SplitState:
    return SplitState(**value | {"shards": tuple(StoredFile(**shard) for shard in value["shards"])})
