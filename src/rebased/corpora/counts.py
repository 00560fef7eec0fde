"""How much a split has of each set."""

from dataclasses import dataclass

import numpy as np

from rebased.corpora.split import Split

__all__ = ["SetCount", "count_by_set"]


@dataclass(frozen=True)
class SetCount:
    """How much of a split is of one set."""

    set: str
    documents: int
    tokens: int
    bytes: int
    """Of the text, in UTF-8."""


def count_by_set(split: Split) -> list[SetCount]:
    """Of those sets that it has, in the order of their numbers."""
    documents = split.documents
    num_documents = np.bincount(documents.set_ids, minlength=len(split.sets)).tolist()
    tokens, num_bytes = np.zeros((2, len(split.sets)), dtype=np.int64)
    np.add.at(tokens, documents.set_ids, documents.lengths)
    np.add.at(num_bytes, documents.set_ids, documents.bytes)
    counts = zip(split.sets, num_documents, tokens.tolist(), num_bytes.tolist(), strict=True)
    return [SetCount(*count) for count in counts if count[1]]
