"""What several tests of corpora need: documents on disk, and what was written read back without the code under test."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from rebased.corpora import Corpus, Split

END = 256
"""The byte tokenizer's end-of-text."""

SPECIAL = "<|endoftext|>"

texts = st.lists(st.sampled_from([SPECIAL, "\r\n", " ", "a", "é", "🙂", "\x00", "\ufeff"]) | st.text(), max_size=8).map(
    "".join
)
"""Any text, an empty one too; often with what looks like a border of documents."""


def write_json_lines(path: Path, documents: Sequence[str], sets: Sequence[str] | None = None) -> str:
    records = [{"text": text} for text in documents]
    if sets is not None:
        records = [record | {"set": name} for record, name in zip(records, sets, strict=True)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def stored_documents(corpus: Corpus, name: str) -> list[str]:
    """From the files themselves: the stream between ends-of-text, as byte tokens are bytes."""
    shards = sorted(corpus.folder.glob(f"{name}-*.tokens"))
    stream = np.concatenate([np.empty(0, "<u2"), *(np.fromfile(path, "<u2") for path in shards)])
    (ends,) = (stream == END).nonzero()
    assert len(stream) == (ends[-1] + 1 if len(ends) else 0)
    pieces = np.split(stream, ends + 1)[:-1]
    return [piece[:-1].astype(np.uint8).tobytes().decode() for piece in pieces]


def all_tokens(split: Split) -> list[int]:
    return split.tokens(0, split.num_tokens).tolist()


def files_in(folder: Path) -> dict[str, str]:
    """Checksums by name: when they differ, names are what one wants to see."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
