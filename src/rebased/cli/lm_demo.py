"""`rebased lm demo`: a language model from text to sample, in some minutes on any machine.

Example: ``rebased lm demo --out demo``
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rebased.cli.console import fail, fail_stopped, make_console, make_folder, print_text
from rebased.cli.lm_generate import generate
from rebased.cli.lm_train import run_training
from rebased.cli.numbers import ABSENT, count
from rebased.training.devices import DEVICE_KINDS, choose_device, current
from rebased.training.language.config import LanguageRunConfig, RunOptions
from rebased.training.language.packages import check_training_packages

if TYPE_CHECKING:
    from rebased.analysis.evaluation import Evaluation
    from rebased.corpora import Corpus

__all__ = ["demo"]

STEPS = 400
SEQ_LEN = 256
BATCH_SIZE = 8
PROMPT = '    """Return the '
EVALUATED_WINDOWS = 64
NEW_TOKENS = 200


def demo(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the corpus, the run and the model.")],
    steps: Annotated[int, typer.Option(min=2, help="Of training: more of them write better Python.")] = STEPS,
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICE_KINDS)}.")] = "auto",
) -> None:
    """Train a small ReBased model on the bytes of Python's own library, evaluate it, and let it write.

    Stopped or killed, the same command goes on.
    """
    try:
        place = choose_device(device)
        config = _config(steps, seed, place)
        options = RunOptions(device=place, checkpoint_every=100, eval_every=100, eval_sequences=32)
        check_training_packages(options)
    except ImportError as error:
        fail(error)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    from rebased.hf.quietly import without_progress_bars  # transformers takes seconds

    make_folder(out)
    begun = time.monotonic()
    corpus = _prepare(out / "corpus")
    print(f"{corpus.split('train').num_tokens:,} bytes of Python in {corpus.folder}")
    model = out / "model"
    with without_progress_bars():
        facts = run_training(config, corpus.folder, model, options, log_every=10)
        found = _evaluate(model, corpus, place)
        generate(model, PROMPT, max_new_tokens=NEW_TOKENS, temperature=0.7, top_p=0.9, seed=seed, device=place)
    print_text(_told(facts, found, model, time.monotonic() - begun), make_console())
    print(f'the model is in {model}; to hear more: rebased lm generate {model} "import " --temperature 0.7')


def _config(steps: int, seed: int, device: str) -> LanguageRunConfig:
    return LanguageRunConfig(
        model="rebased-small",
        seq_len=SEQ_LEN,
        batch_size=BATCH_SIZE,
        steps=steps,
        warmup_steps=min(30, steps // 5),
        learning_rate=4e-3,
        seed=seed,
        dtype="float32" if device == "cpu" else "bfloat16",
    )


def _prepare(folder: Path) -> "Corpus":
    from rebased.corpora import prepare

    try:
        with make_console(stderr=True).status("reading Python's library"):
            return prepare(["python"], folder, tokenizer="bytes")
    except KeyboardInterrupt:
        fail_stopped()
    except (ImportError, ValueError, OSError) as error:
        fail(error)


def _evaluate(model: Path, corpus: "Corpus", device: str) -> "Evaluation":
    from rebased.analysis.evaluation import EvaluationConfig
    from rebased.analysis.perplexity import evaluate
    from rebased.analysis.saved_model import load_saved_model
    from rebased.cli.evaluation_table import print_evaluation

    config = EvaluationConfig(length=SEQ_LEN, max_windows=EVALUATED_WINDOWS)
    try:
        with current(device), make_console(stderr=True).status("evaluating"):
            found = evaluate(load_saved_model(model), corpus, config, device=device)
    except KeyboardInterrupt:
        fail_stopped()
    except (ImportError, ValueError, RuntimeError, OSError) as error:
        fail(error)
    print_evaluation(found, corpus.name, make_console())
    return found


def _told(facts: dict[str, Any], found: "Evaluation", model: Path, seconds: float) -> str:
    from rebased.training.language.metrics import read_metrics

    lines = read_metrics(model)
    unseen = found.whole.scores["all"].loss
    speeds = sorted(line["tokens_per_second"] for line in lines)
    return (
        f"{facts['parameters']:,} parameters, {facts['tokens']:,} bytes read in {facts['steps']} steps: loss "
        f"{_loss(lines[0].get('loss'))} in the first, {_loss(facts['loss'])} in the last; {_loss(unseen)} over the "
        f"{count(found.num_windows, 'window')} above, which it never saw and whose perplexity is exp of that; "
        f"{speeds[len(speeds) // 2]:,.0f} tokens/s, {seconds:.0f} s in all"
    )


def _loss(loss: float | None) -> str:
    """One that is no finite number is stored as none."""
    return ABSENT if loss is None else f"{loss:.2f}"
