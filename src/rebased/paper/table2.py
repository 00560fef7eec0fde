"""Table 2: perplexity of language models, all tokens, those that recall (AR) and the others.

Results are files ``lm/<name>.json`` in the folder of all results, one for each model and seed, as `rebased lm eval
--out` writes them::

    {"model": "rebased", "seed": 1, "parameters": …, "tokens": …, "corpus": "…", "ar_fraction": …,
     "perplexity": {"all": …, "ar": …, "non_ar": …}, …}

``model``, ``seed`` and ``tokens`` are null for a model that says nothing of its training.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rebased.analysis.pages import Cell, Section, Table
from rebased.paper.experiment import NO_GRIDS, Data, Experiment, Material
from rebased.paper.published import TABLE_2

__all__ = ["TABLE2"]

_NAMES = {"attention": "Attention", "based": "Based", "rebased": "ReBased"}
_KINDS = ("all", "ar", "non_ar")
_FIELDS = ("model", "seed", "parameters", "tokens", "corpus", "ar_fraction", "perplexity")


def measure(material: Material) -> Data:
    return {"runs": [_read(path) for path in sorted((material.out / "lm").glob("*.json"))]}


def _read(path: Path) -> Data:
    try:
        values = json.loads(path.read_text())
        return {name: values[name] for name in _FIELDS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is no result of a language model: {error!r}") from error


def present(data: Data) -> Section:
    runs = data["runs"]
    parts: list[Any] = []
    if runs:
        corpora = ", ".join(sorted({run["corpus"] for run in runs}))
        fraction = statistics.fmean(run["ar_fraction"] for run in runs)
        parts.append(
            f"Ours on {corpora}, {fraction:.0%} of tokens AR (the paper's split implies 45 %); the paper's on the "
            "Pile. Perplexities of different corpora and sizes do not compare; the order of models does."
        )
    else:
        parts.append("No language model has been trained yet: what is here is the paper's.")
    by_model: dict[str, list[Data]] = {}
    for run in runs:
        by_model.setdefault(run["model"] or "unknown", []).append(run)
    rows: list[list[Cell | str]] = []
    for model, name in _NAMES.items():
        if model in by_model:
            rows.append(_row(name, by_model.pop(model)))
        quoted = (f"{value:.2f}" for value in TABLE_2[model])
        rows.append([Cell(each, "faint") for each in (f"{name}, the paper's", "", *quoted)])
    rows += [_row(model, others) for model, others in by_model.items()]
    parts.append(Table.of("perplexity", ("model", "tokens", "all", "AR", "non-AR"), rows))
    return Section("Table 2: language models", tuple(parts))


def _row(name: str, runs: Sequence[Data]) -> list[Cell | str]:
    tokens = runs[0]["tokens"]
    return [name, "unknown" if tokens is None else f"{tokens:,}", *(_mean(runs, kind) for kind in _KINDS)]


def _mean(runs: Sequence[Data], kind: str) -> str:
    values = [run["perplexity"][kind] for run in runs if run["perplexity"][kind] is not None]
    if not values:  # as where no token recurs
        return "—"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


TABLE2 = Experiment(
    name="table2",
    title="Perplexity of language models",
    grids=NO_GRIDS,
    measure=measure,
    present=present,
)
