"""How many bytes of text a token stands for: perplexities of different tokenizers compare by bits per byte only."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    from rebased.corpora import Corpus

__all__ = ["TokenBytes", "bytes_of_tokens"]


class TokenBytes:
    """UTF-8 bytes of a split's tokens. Those of a document's tokens add up to the document's; the end of text has none.

    A token of a byte-level tokenizer has as many bytes as it stands for, also where these are no whole characters; one
    of another tokenizer as many as its text alone. Where a document's tokens then do not add up to its bytes (because
    text was normalised, say), all of its tokens are scaled so that they do.
    """

    def __init__(self, corpus: "Corpus", split: str) -> None:
        self._split = corpus.split(split)
        self._lengths = bytes_of_tokens(corpus.tokenizer(), corpus.vocab_size)
        self._lengths[corpus.end_of_text] = 0
        self._scales: dict[int, float] = {}

    def __call__(self, document: int, tokens: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        """Of some tokens of a document."""
        if document not in self._scales:
            self._scales[document] = self._scale(document)
        return self._lengths[tokens] * self._scales[document]

    def _scale(self, document: int) -> float:
        documents = self._split.documents
        start = documents.ends[document - 1] if document else 0
        alone = self._lengths[self._split.tokens(int(start), int(documents.ends[document]))].sum()
        return float(documents.bytes[document] / alone) if alone else 1.0


def bytes_of_tokens(tokenizer: Any, vocab_size: int) -> Float[np.ndarray, "V"]:
    """By token; special tokens and numbers without a token have none."""
    backend = tokenizer.backend_tokenizer
    is_byte_level = "ByteLevel" in json.dumps(json.loads(backend.to_str())["decoder"])
    added = backend.get_added_tokens_decoder()
    lengths = np.zeros(vocab_size)
    for index in range(vocab_size):
        token = backend.id_to_token(index)
        if index in added:
            lengths[index] = 0 if added[index].special else len(added[index].content.encode())
        elif token is not None:  # byte-level tokenizers write each byte as one character of an alphabet of their own
            lengths[index] = len(token) if is_byte_level else len(backend.decode([index]).encode())
    return lengths
