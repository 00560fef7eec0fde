"""Perplexity of a language model on a corpus: of all tokens, of those it could recall (AR), and of the others.

Each window is read on its own, from its first token on, which is not predicted. Perplexity is exp of the mean loss of
the predicted tokens, of all windows together. A token counts for the set of the document it lies in, and at its place
in the window, or in its text where windows do not cross the borders of documents. Losses are added up in float64.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rebased.analysis.evaluation import Evaluation, EvaluationConfig, Group
from rebased.analysis.recurrence import recurs
from rebased.analysis.saved_model import SavedModel
from rebased.analysis.tally import KINDS, Tally, bucket_start
from rebased.analysis.token_bytes import TokenBytes
from rebased.analysis.token_losses import TokenLosses
from rebased.corpora import Corpus, Windows, hash_tokenizer
from rebased.corpora.windows import spread

__all__ = ["evaluate"]

DEFAULT_LENGTH = 4096
"""Of windows for a model that says nothing of its positions: the paper's."""

Progress = Callable[[int, int], None]
"""Told how many windows are done, and of how many."""


def evaluate(
    saved: SavedModel,
    corpus: Corpus,
    config: EvaluationConfig,
    *,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Evaluation:
    """The same every time. The model is moved to ``device``.

    ValueError, before any work, if the model and the corpus do not fit each other or there is no window; and for a loss
    that is not a finite number.
    """
    notes = _check_vocabulary(saved, corpus)
    windows = _make_windows(saved, corpus, config)
    chosen = spread(len(windows), config.max_windows)
    begin = time.perf_counter()
    model = saved.model.to(device, torch.float64 if config.dtype == "float64" else torch.float32)
    token_losses, token_bytes = TokenLosses(model), TokenBytes(corpus, config.split)
    tally = Tally(len(chosen), len(windows.split.sets), windows.length)
    for start in range(0, len(chosen), config.batch_size):
        some = chosen[start : start + config.batch_size]
        examples = [windows[index] for index in some]
        with _autocast(config, device):
            losses = _losses(token_losses, examples, device)
        for row, index in enumerate(some):
            predicted, facts = _predicted(examples[row], windows, index, token_bytes, config.recurrence)
            found = losses[row, predicted - 1]
            if not np.isfinite(found).all():
                raise ValueError(f"window {index} of {config.split} has losses that are not finite numbers")
            tally.add(start + row, found, **facts)
        if progress is not None:
            progress(start + len(some), len(chosen))
    seconds = time.perf_counter() - begin
    note = saved.note_on_length(windows.length, was_chosen=config.length is not None)
    notes = notes if note is None else (*notes, note)
    return _result(tally, replace(config, length=windows.length), windows, notes, seconds)


# ---- Before any work ----


def _check_vocabulary(saved: SavedModel, corpus: Corpus) -> tuple[str, ...]:
    """ValueError unless the model can read the corpus; what should be said if nothing proves that it can."""
    size = saved.model.get_input_embeddings().weight.shape[0]
    if size < corpus.vocab_size:
        raise ValueError(f"the corpus has tokens up to {corpus.vocab_size - 1}, and the model only {size} embeddings")
    if saved.tokenizer is None:
        return ("no tokenizer was saved with the model: that it is the corpus's could not be checked",)
    if hash_tokenizer(saved.tokenizer) != corpus.tokenizer_hash:
        raise ValueError(
            "the tokenizer saved with the model is not the corpus's; prepare the corpus with the model's tokenizer"
        )
    return ()


def _make_windows(saved: SavedModel, corpus: Corpus, config: EvaluationConfig) -> Windows:
    split, limit = corpus.split(config.split), saved.max_positions
    length = config.length or saved.usual_length or DEFAULT_LENGTH
    if limit is not None and length > limit:
        raise ValueError(f"length={length} is more than the model's {limit} positions")
    windows = Windows(split, length, crossing=config.crossing)
    if not len(windows):
        raise ValueError(f"{config.split} has no tokens: there is nothing to predict")
    return windows


# ---- Window by window ----


def _losses(token_losses: TokenLosses, examples: Sequence[dict[str, Tensor]], device: str) -> Float[np.ndarray, "B T1"]:
    columns = {
        name: torch.stack([example[name] for example in examples]).to(device)
        for name in ("input_ids", "position_ids")
        if name in examples[0]
    }
    losses = token_losses(columns["input_ids"], position_ids=columns.get("position_ids"))
    return losses.double().cpu().numpy()


def _predicted(
    example: dict[str, Tensor], windows: Windows, index: int, token_bytes: TokenBytes, recurrence: str
) -> tuple[Int[np.ndarray, "N"], dict[str, Any]]:
    """Which tokens of a window are predicted, and what `Tally.add` is told of them."""
    tokens = example["input_ids"].numpy()
    positions, is_predicted = np.arange(len(tokens)), np.ones(len(tokens), dtype=bool)
    if not windows.crossing:
        positions, is_predicted = example["position_ids"].numpy(), example["labels"].numpy() >= 0
    is_predicted[0] = False
    sets, num_bytes = np.zeros(len(tokens), dtype=np.int64), np.zeros(len(tokens))
    for document, start, stop in windows.source(index):
        sets[start:stop] = windows.split.documents.set_ids[document]
        num_bytes[start:stop] = token_bytes(document, tokens[start:stop])
    texts = np.cumsum(positions == 0) - 1
    columns = {
        "sets": sets,
        "positions": positions,
        "recurs": recurs(tokens[None], recurrence, sequences=texts[None])[0],
        "num_bytes": num_bytes,
    }
    predicted = np.flatnonzero(is_predicted)
    return predicted, {name: column[predicted] for name, column in columns.items()}


def _autocast(config: EvaluationConfig, device: str) -> AbstractContextManager[object]:
    if config.dtype != "bfloat16":
        return nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


# ---- What it adds up to ----


def _result(
    tally: Tally, config: EvaluationConfig, windows: Windows, notes: tuple[str, ...], seconds: float
) -> Evaluation:
    starts = [min(bucket_start(bucket), windows.length) for bucket in range(tally.num_buckets + 1)]
    positions = [f"{start}-{stop - 1}" for start, stop in pairwise(starts)]
    whole = _group(tally, "all")
    if whole is None:
        raise ValueError(f"{config.split} has no document of two tokens: there is nothing to predict")
    by_set = [_group(tally, name, document_set=number) for number, name in enumerate(windows.split.sets)]
    by_position = [_group(tally, name, bucket=number) for number, name in enumerate(positions)]
    return Evaluation(
        config=config,
        whole=whole,
        by_set=tuple(group for group in by_set if group is not None),
        by_position=tuple(group for group in by_position if group is not None),
        num_windows=tally.num_windows,
        num_bytes=tally.num_bytes(),
        seconds=seconds,
        notes=notes,
    )


def _group(tally: Tally, name: str, **which: int) -> Group | None:
    """None where there are no tokens."""
    fraction = tally.ar_fraction(**which)
    if fraction is None:
        return None
    return Group(
        name=name,
        ar_fraction=fraction,
        scores={kind: tally.score(kind, **which) for kind in KINDS},
        bits_per_byte=tally.bits_per_byte(**which),
    )
