"""A small corpus of bytes, small models on disk, and perplexity by its definition: in float64, with all logits."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from rebased.corpora import Corpus, byte_tokenizer, prepare

END_OF_TEXT = 256
DOCUMENTS = [
    ("prose", "the cat sat on the mat, and the dog sat on the log; " * 5),
    ("prose", "a naïve café in 東京: ∑ of all, and of all ∑. " * 4),
    ("code", "x"),
    ("code", "for i in range(3):\n    print(i)\nfor j in range(3):\n    print(j)\n" * 3),
    ("lists", " ".join(str(number * 37 % 101) for number in range(120))),
    ("prose", "It was the best of times, it was the worst of times."),
    ("code", "def f(x):\n    return x\n"),
]
"""Set and text; some have more bytes than characters, one has a single byte, and all are cut by windows somewhere."""


def make_corpus(folder: Path) -> Corpus:
    for name, documents in (("train", DOCUMENTS[:1]), ("valid", DOCUMENTS)):
        lines = (json.dumps({"set": kind, "text": text}) + "\n" for kind, text in documents)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return prepare([str(folder / "train.jsonl")], folder / "corpus", validation=[str(folder / "valid.jsonl")])


def save_model(folder: Path, *, architecture: str = "rebased", positions: int = 300, **changes: Any) -> Path:
    """A random model of bytes, with its tokenizer."""
    torch.manual_seed(0)
    make: Callable[..., Any] = {"rebased": _rebased, "gpt2": _gpt2}[architecture]
    make(positions, changes).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def _rebased(positions: int, changes: dict[str, Any]) -> Any:
    from rebased.hf import RebasedConfig, RebasedForCausalLM

    values: dict[str, Any] = {
        "vocab_size": 260,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "feature_dim": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": positions,
        "initializer_range": 0.3,
    }
    return RebasedForCausalLM(RebasedConfig(**values | changes))


def _gpt2(positions: int, changes: dict[str, Any]) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    values = {"vocab_size": 260, "n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": positions}
    ends = {"bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT}
    return GPT2LMHeadModel(GPT2Config(**values | ends | {"initializer_range": 0.3} | changes))


@dataclass
class Token:
    """One that is predicted."""

    loss: float
    document_set: str
    position: int
    is_pair: bool
    """Whether it followed the same token before."""
    was_there: bool
    num_bytes: int


def predicted_tokens(model: Any, length: int, *, crossing: bool) -> list[list[Token]]:
    """Of each window, or where they do not cross borders of each text, by the definition: ``model`` is float64."""
    return [list(_tokens_of(model, row)) for row in _rows(length, crossing)]


def _rows(length: int, crossing: bool) -> list[list[tuple[int, str]]]:
    """Tokens with their sets."""
    texts = [[*((byte, kind) for byte in text.encode()), (END_OF_TEXT, kind)] for kind, text in DOCUMENTS]
    if crossing:
        stream = list(chain.from_iterable(texts))
        return [stream[start : start + length] for start in range(0, len(stream) - length + 1, length)]
    return [text[start : start + length] for text in texts for start in range(0, len(text), length)]


@torch.no_grad()
def _tokens_of(model: Any, row: list[tuple[int, str]]) -> Iterator[Token]:
    tokens = [token for token, _ in row]
    chances = model(torch.tensor([tokens])).logits[0].log_softmax(dim=-1)
    assert chances.dtype == torch.float64
    for t in range(1, len(tokens)):
        pairs = [(tokens[s - 1], tokens[s]) for s in range(1, t)]
        yield Token(
            loss=-float(chances[t - 1, tokens[t]]),
            document_set=row[t][1],
            position=t,
            is_pair=(tokens[t - 1], tokens[t]) in pairs,
            was_there=tokens[t] in tokens[:t],
            num_bytes=int(tokens[t] != END_OF_TEXT),
        )


def perplexity_of(tokens: list[Token]) -> float:
    return math.exp(math.fsum(token.loss for token in tokens) / len(tokens))
