"""The manifest of a corpus: what lies in its folder, with sizes and checksums. It is written last."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rebased.files import write_json

__all__ = [
    "MANIFEST",
    "SPLITS",
    "Manifest",
    "StoredFile",
    "StoredSplit",
    "hash_file",
    "hash_splits",
    "read_manifest",
    "write_manifest",
]

MANIFEST = "manifest.json"
SPLITS = ("train", "validation")
_FORMAT = "rebased corpus, version 1"
_DTYPES = ("uint16", "uint32")


@dataclass(frozen=True)
class StoredFile:
    """A file as it was written, and so has to be."""

    name: str
    """Its path within the folder."""
    size: int
    """In bytes."""
    sha256: str

    def check_size(self, folder: Path) -> None:
        """ValueError, saying what to do, if the file is absent or of another size."""
        path = folder / self.name
        if not path.is_file():
            raise ValueError(f"{path} is missing; {_advice(folder)}")
        size = path.stat().st_size
        if size != self.size:
            raise ValueError(f"{path} has {size:,} bytes and should have {self.size:,}; {_advice(folder)}")

    def check_content(self, folder: Path) -> None:
        """ValueError, saying what to do, if any byte is another."""
        self.check_size(folder)
        if hash_file(folder / self.name) != self.sha256:
            raise ValueError(f"{folder / self.name} is damaged: its checksum is another; {_advice(folder)}")


@dataclass(frozen=True)
class StoredSplit:
    """How much a split holds, and in which files."""

    num_tokens: int
    num_documents: int
    num_bytes: int
    """Of the text, in UTF-8."""
    shards: tuple[StoredFile, ...]
    documents: StoredFile


@dataclass(frozen=True)
class Manifest:
    """All that is known of a corpus without reading its tokens."""

    dtype: str
    """Of tokens: uint16 or uint32, little-endian."""
    vocab_size: int
    end_of_text: int
    tokenizer_hash: str
    tokenizer: tuple[StoredFile, ...]
    sets: tuple[str, ...]
    """By their numbers, in the order of their first documents."""
    splits: dict[str, StoredSplit]
    request: dict[str, Any]
    """What was asked for: sources and options."""
    left_out: dict[str, int] = field(default_factory=dict)
    """How many files of the sources' folders were not read, by their endings, which are not known."""

    @property
    def files(self) -> tuple[StoredFile, ...]:
        """All that lie in the folder, but for the manifest."""
        parts = [(*split.shards, split.documents) for split in self.splits.values()]
        return (*self.tokenizer, *(file for part in parts for file in part))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / MANIFEST, {"format": _FORMAT} | asdict(manifest), sort_keys=True)


def read_manifest(folder: Path) -> Manifest:
    """ValueError for what is none of ours."""
    path = folder / MANIFEST
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        form = value["format"]
        if form != _FORMAT:
            raise ValueError(f"it has format={form!r}, and this version reads {_FORMAT!r}")
        manifest = Manifest(
            dtype=value["dtype"],
            vocab_size=int(value["vocab_size"]),
            end_of_text=int(value["end_of_text"]),
            tokenizer_hash=str(value["tokenizer_hash"]),
            tokenizer=_files(value["tokenizer"]),
            sets=tuple(value["sets"]),
            splits={name: _split(value["splits"][name]) for name in SPLITS},
            request=dict(value["request"]),
            left_out=dict(value.get("left_out", {})),  # corpora of before know nothing of it
        )
        if manifest.dtype not in _DTYPES:
            raise ValueError(f"it has dtype={manifest.dtype!r}; it must be one of {', '.join(_DTYPES)}")
    except (OSError, KeyError, TypeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} cannot be read ({what}); {_advice(folder)}") from error
    return manifest


def hash_splits(manifest: Manifest) -> str:
    """Of what the splits hold, by the files' own hashes."""
    files = [
        (file.name, file.sha256) for split in manifest.splits.values() for file in (*split.shards, split.documents)
    ]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _split(value: dict[str, Any]) -> StoredSplit:
    return StoredSplit(
        num_tokens=int(value["num_tokens"]),
        num_documents=int(value["num_documents"]),
        num_bytes=int(value["num_bytes"]),
        shards=_files(value["shards"]),
        documents=StoredFile(**value["documents"]),
    )


def _files(values: list[dict[str, Any]]) -> tuple[StoredFile, ...]:
    return tuple(StoredFile(**value) for value in values)


def _advice(folder: Path) -> str:
    return f"bring the file back, or delete {folder} and prepare it anew"
