"""Text as tokens on disk: prepared once, memory-mapped, checksummed; and windows of it to train and evaluate on."""

from rebased.corpora.corpus import Corpus, open_corpus
from rebased.corpora.encoding import byte_tokenizer, hash_tokenizer
from rebased.corpora.preparing import prepare
from rebased.corpora.split import Documents, Split
from rebased.corpora.windows import Windows
from rebased.corpora.writing import Progress

__all__ = [
    "Corpus",
    "Documents",
    "Progress",
    "Split",
    "Windows",
    "byte_tokenizer",
    "hash_tokenizer",
    "open_corpus",
    "prepare",
]
