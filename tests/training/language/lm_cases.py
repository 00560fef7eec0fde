"""A small corpus and a small model, trained in a second."""

import functools
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

from rebased.corpora import Corpus, open_corpus, prepare
from rebased.training.language.config import LanguageRunConfig, RunOptions
from rebased.training.language.train import train

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "feature_dim": 4}
STEPS = 12


def write_texts(folder: Path) -> Path:
    """Forty documents of some hundred bytes, with something to learn in each."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(40):
        text = f"number {index} sat on the mat, and then it sat on the log. " * (5 + index % 7)
        (folder / f"{index}.txt").write_text(text)
    return folder


@functools.cache
def corpus() -> Corpus:
    """One for all tests of a process."""
    gc.freeze()  # the trainer collects garbage before each run, and what is imported by now is none
    folder = Path(tempfile.mkdtemp())
    return prepare([str(write_texts(folder / "texts"))], folder / "corpus", validation=0.3)


def small_run(**changes: Any) -> LanguageRunConfig:
    values: dict[str, Any] = {
        "model": "rebased-small",
        "changes": SIZES,
        "seq_len": 32,
        "batch_size": 4,
        "steps": STEPS,
        "warmup_steps": 3,
        "learning_rate": 1e-2,
        "dtype": "float32",
    }
    return LanguageRunConfig(**values | changes)


def small_options(**changes: Any) -> RunOptions:
    return RunOptions(**{"device": "cpu", "checkpoint_every": 5, "board": False} | changes)


def train_small(out: Path, config: LanguageRunConfig | None = None, **options: Any) -> dict[str, Any]:
    return train(config or small_run(), corpus(), out, small_options(**options))


def train_in_a_process(corpus_folder: Path, out: Path, changes: dict[str, Any], options: dict[str, Any]) -> None:
    """What a process of a test's own does, to be killed."""
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    train(small_run(**changes), open_corpus(corpus_folder), out, small_options(**options))


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def history(out: Path) -> list[dict[str, Any]]:
    """All that is not about time."""
    return [{name: x for name, x in line.items() if name != "tokens_per_second"} for line in lines(out)]
