"""Tokenizers: where they come from, how one is known from another, and text to tokens in batches."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["BYTES", "Encoder", "byte_tokenizer", "hash_tokenizer", "load_saved", "load_tokenizer"]

BYTES = "bytes"
"""The name of the built-in tokenizer."""
_END_OF_TEXT = "<|endoftext|>"
_ENDS_OF_TEXT = (_END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
"""What a tokenizer that names none is searched for, in this order."""


def load_tokenizer(name: str) -> "PreTrainedTokenizerFast":
    """``bytes``, a file of the library ``tokenizers``, a folder of ``save_pretrained``, or a name of the Hub.

    ValueError for what is none of these, and for a tokenizer without an end-of-text token.
    """
    if name == BYTES:
        return byte_tokenizer()
    _require_transformers()
    path = Path(name)
    if path.is_file():
        tokenizer = _load_file(path)
    elif path.is_dir():
        tokenizer = load_saved(path)
    elif path.suffix == ".json" or path.is_absolute():
        raise ValueError(f"tokenizer={name!r} does not exist")
    else:
        tokenizer = _load_pretrained(name)
    if tokenizer.eos_token_id is None:
        known = ", ".join(_ENDS_OF_TEXT)
        raise ValueError(f"tokenizer={name!r} has no end-of-text token; give it an eos_token, or one of {known}")
    return tokenizer


def load_saved(folder: Path) -> "PreTrainedTokenizerFast":
    """One that ``save_pretrained`` has written; never from elsewhere."""
    _require_transformers()
    return _load_pretrained(str(folder), local_files_only=True)


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """A token for each byte, with the byte's value as its number, and 256 for end-of-text.

    ``decode(encode(text)) == text`` for any text.
    """
    _require_transformers()
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(vocab=_byte_names(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_END_OF_TEXT,
        eos_token=_END_OF_TEXT,
        pad_token=_END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        padding_side="left",  # what is generated follows the prompt
    )


def _byte_names() -> dict[str, int]:
    """Bytes as the characters that ByteLevel writes for them: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def hash_tokenizer(tokenizer: "PreTrainedTokenizerFast") -> str:
    """Equal for tokenizers that make the same tokens of the same text and end it alike, wherever they were loaded from.

    What a tokenizer adds around a text, how it pads and how it cuts are no part of it: a corpus has none of these.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    parts: dict[str, Any] = {name: content[name] for name in ("model", "normalizer", "pre_tokenizer", "decoder")}
    parts["added_tokens"] = sorted(content["added_tokens"], key=lambda token: token["id"])
    parts["end_of_text"] = tokenizer.eos_token_id
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Encoder:
    """Text to tokens, as text alone: what looks like a special token in it is no border of documents."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        from tokenizers import Tokenizer

        # A copy, as the settings below are not ours to change in the caller's.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True
        self.end_of_text = int(tokenizer.eos_token_id)
        self.vocab_size = 1 + max(self._backend.get_vocab(with_added_tokens=True).values())
        self.dtype = np.dtype("<u2" if self.vocab_size <= 2**16 else "<u4")

    def __call__(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """All at once, on as many threads as the library ``tokenizers`` takes."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.dtype) for encoding in encodings]


def _load_file(path: Path) -> "PreTrainedTokenizerFast":
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower one
        raise ValueError(f"tokenizer={str(path)!r} is no file of the library tokenizers: {error}") from error
    end = next((token for token in _ENDS_OF_TEXT if backend.token_to_id(token) is not None), None)
    special = {} if end is None else {"bos_token": end, "eos_token": end, "pad_token": end}
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **special)


def _load_pretrained(name: str, **options: Any) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"tokenizer={name!r} cannot be loaded: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"tokenizer={name!r} has no fast form, one of the library tokenizers; choose another")
    return tokenizer


def _require_transformers() -> None:
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        raise ImportError("tokenizers need transformers: pip install transformers") from error
