"""`rebased lm eval`: perplexity on a corpus, of all tokens, those that recall (AR) and the others.

Example: ``rebased lm eval runs/lm/rebased --data corpora/prose --out results/lm/rebased.json``
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from rebased.analysis.evaluation import DTYPES, Evaluation, EvaluationConfig
from rebased.analysis.recurrence import RECURRENCES
from rebased.cli.console import STOPPED, fail, in_options, make_console, make_folder
from rebased.cli.evaluation_table import print_evaluation
from rebased.cli.model_folder import check_model_folder
from rebased.environment import describe_environment
from rebased.files import write_json
from rebased.training.devices import DEVICES, choose_device, current
from rebased.training.packages import require_packages

if TYPE_CHECKING:
    from rebased.analysis.saved_model import SavedModel

__all__ = ["evaluate_model"]

_DEFAULTS = EvaluationConfig()


def evaluate_model(
    folder: Annotated[Path, typer.Argument(help="A model, as save_pretrained writes it.")],
    data: Annotated[Path, typer.Option(help="A corpus, as `rebased data prepare` writes it.")],
    split: Annotated[str, typer.Option(help="Of the corpus: train or validation.")] = _DEFAULTS.split,
    length: Annotated[
        int | None, typer.Option(help="Tokens of a window; if not given, as many as in training.")
    ] = None,
    crossing: Annotated[
        bool, typer.Option(help="Windows of the stream of documents, or each document for itself.")
    ] = _DEFAULTS.crossing,
    recurrence: Annotated[
        str, typer.Option(help=f"What makes a token AR when it was there before: {' or '.join(RECURRENCES)}.")
    ] = _DEFAULTS.recurrence,
    max_windows: Annotated[int | None, typer.Option(help="At most, spread over the split; if not given, all.")] = None,
    batch_size: Annotated[int, typer.Option(help="Windows at a time.")] = _DEFAULTS.batch_size,
    dtype: Annotated[str, typer.Option(help=f"Of products: one of {', '.join(DTYPES)}.")] = _DEFAULTS.dtype,
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")] = "auto",
    out: Annotated[Path | None, typer.Option(dir_okay=False, help="Write everything to this JSON file.")] = None,
) -> None:
    """Perplexity on a corpus: all tokens, those that recall (AR) and the others; by document set and position."""
    try:
        place = choose_device(device)
        config = EvaluationConfig(
            split=split,
            length=length,
            crossing=crossing,
            recurrence=recurrence,
            max_windows=max_windows,
            batch_size=batch_size,
            dtype=dtype,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    check_model_folder(folder)
    if out is not None:
        make_folder(out.parent)
    try:
        require_packages("evaluation", "transformers")
        record = _evaluate(folder, data, config, place)
    except KeyboardInterrupt:
        fail("stopped", status=STOPPED)
    except torch.OutOfMemoryError as error:
        fail(f"out of memory; use a smaller --batch-size ({error})")
    except (ImportError, ValueError, OSError) as error:
        fail(in_options(error, "length", "crossing", name="split"))
    if out is not None:
        write_json(out, record)
        print(f"wrote {out}")


def _evaluate(folder: Path, data: Path, config: EvaluationConfig, device: str) -> dict[str, Any]:
    from rebased.analysis.perplexity import evaluate
    from rebased.analysis.saved_model import load_saved_model  # transformers takes seconds
    from rebased.corpora import open_corpus

    corpus = open_corpus(data)
    corpus.split(config.split)
    saved = load_saved_model(folder)
    with current(device), make_console(stderr=True).status("starting") as status:

        def progress(done: int, count: int) -> None:
            status.update(f"{done} of {count} windows")

        evaluation = evaluate(saved, corpus, config, device=device, progress=progress)
    print_evaluation(evaluation, corpus.name, make_console())
    return _record(evaluation, saved, corpus.name, device)


def _record(evaluation: Evaluation, saved: "SavedModel", corpus: str, device: str) -> dict[str, Any]:
    """The fields that Table 2 reads, and everything else; null where nothing is known of the training."""
    training = saved.training
    return {
        "model": training.get("model"),
        "seed": training.get("seed"),
        "parameters": saved.num_parameters,
        "tokens": training.get("tokens"),
        "corpus": corpus,
        **evaluation.to_json(),
        "training": training,
        "environment": dataclasses.asdict(describe_environment(torch.device(device))),
    }
