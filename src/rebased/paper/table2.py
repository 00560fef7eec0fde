"""Table 2: perplexity of language models, all tokens, those that recall (AR) and the others.

Results are files ``lm/<name>.json`` in the folder of all results, one for each model and seed, as `rebased lm eval
--out` writes them::

    {"model": "rebased", "seed": 1, "parameters": …, "tokens": …, "corpus": "…", "ar_fraction": …,
     "perplexity": {"all": …, "ar": …, "non_ar": …}, …}

``model``, ``seed`` and ``tokens`` are null for a model that says nothing of its training.
"""

import json
import math
import statistics
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rebased.analysis.holm import holm
from rebased.analysis.pages import Cell, Section, Table
from rebased.analysis.welch import welch_p
from rebased.paper.experiment import NO_GRIDS, Data, Experiment, Material
from rebased.paper.published import TABLE_2, TABLE_2_TOKENS, TABLE_9

__all__ = ["TABLE2"]

_NAMES = {"attention": "Attention", "based": "Based", "rebased": "ReBased"}
_KIND_NAMES = {"all": "all", "ar": "AR", "non_ar": "non-AR"}
_KINDS = tuple(_KIND_NAMES)
ALPHA = 0.05
_TRAINED_ALIKE = ("tokens", "recipe", "corpus", "num_tokens", "config")
"""Runs that compare; ``recipe`` says how they were trained, ``num_tokens`` and ``config`` how they were evaluated."""
_ALIKE = ("model", "parameters", "changes", *_TRAINED_ALIKE)
"""Runs that differ in nothing else than the seed."""
_READ = ("model", "parameters", "tokens", "corpus", "num_tokens", "config", "seed", "ar_fraction", "perplexity")


def measure(material: Material) -> Data:
    """ValueError, naming the files, for two results of one run: they would pass for two seeds."""
    paths = sorted((material.out / "lm").glob("*.json"))
    runs = [_read(path) for path in paths]
    seen: dict[str, Path] = {}
    for path, run in zip(paths, runs, strict=True):
        name = json.dumps([run[field] for field in (*_ALIKE, "seed")], sort_keys=True)
        if name in seen and run["seed"] is not None:
            raise ValueError(f"{seen[name]} and {path} are of the same model, seed and evaluation; keep one of them")
        seen[name] = path
    return {"runs": runs}


def _read(path: Path) -> Data:
    try:
        values = json.loads(path.read_text())
        found = {name: values[name] for name in _READ}
        found["config"] = {name: value for name, value in found["config"].items() if name != "batch_size"}
        trained = (values.get("training") or {}).get("config") or {}
        found["changes"] = trained.get("changes")
        found["recipe"] = {name: trained[name] for name in trained if name not in ("model", "changes", "seed")} or None
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no result of a language model: {error!r}") from error


def present(data: Data) -> Section:
    runs = data["runs"]
    parts: list[Any] = []
    if runs:
        corpora = ", ".join(sorted({run["corpus"] for run in runs}))
        fraction = statistics.fmean(run["ar_fraction"] for run in runs)
        parts.append(
            f"Ours on {corpora}, {fraction:.0%} of tokens AR (the paper's split implies 45 %); the paper's on the "
            "Pile. Perplexities of different corpora, sizes and lengths of training do not compare, nor need the order "
            "of models be the same."
        )
    else:
        parts.append("No language model has been trained yet: what is here is the paper's.")
    groups = _groups(runs)
    rows: list[list[Cell | str]] = []
    for family, name in _NAMES.items():
        rows += [_row(name, group) for group in groups if _family(group) == family]
        quoted = (f"{value:.2f}" for value in TABLE_2[family])
        known = (f"{name}, the paper's", f"{TABLE_9[family]:,}", f"{TABLE_2_TOKENS:,}", "", *quoted)
        rows.append([Cell(each, "faint") for each in known])
    rows += [_row(group[0]["model"] or "unknown", group) for group in groups if _family(group) not in _NAMES]
    header = ("model", "parameters", "tokens", "seeds", "all", "AR", "non-AR")
    parts.append(Table.of("perplexity, mean ± standard deviation over seeds", header, rows))
    compared = _compared(runs)
    if compared:
        parts.append(
            "Models trained and evaluated alike are compared in pairs, by Welch's test of the logarithms of their "
            "perplexities over seeds, which takes these to be normal, with Holm's correction for the number of ratios."
        )
        parts.append(_pairs_table(compared))
    return Section("Table 2: language models", tuple(parts))


def _groups(runs: Sequence[Data]) -> list[list[Data]]:
    """Runs that differ in the seed alone; one whose seed nobody knows stands for itself."""
    found: dict[str, list[Data]] = {}
    for index, run in enumerate(runs):
        own = index if run["seed"] is None else None
        found.setdefault(json.dumps([run[field] for field in _ALIKE] + [own], sort_keys=True), []).append(run)
    return list(found.values())


def _family(group: Sequence[Data]) -> str:
    return str(group[0]["model"]).split("-")[0]


def _row(name: str, runs: Sequence[Data]) -> list[Cell | str]:
    tokens = runs[0]["tokens"]
    return [
        name,
        f"{runs[0]['parameters']:,}",
        "unknown" if tokens is None else f"{tokens:,}",
        str(len(runs)),
        *(_mean(runs, kind) for kind in _KINDS),
    ]


def _mean(runs: Sequence[Data], kind: str) -> str:
    values = [run["perplexity"][kind] for run in runs if run["perplexity"][kind] is not None]
    if not values:  # as where no token recurs
        return "—"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


# ---- Which of two models is better ----


def _compared(runs: Sequence[Data]) -> list[tuple[str, str, str, float, float]]:
    """Pairs of models trained and evaluated alike with several seeds: names, tokens, log of the ratio, Welch's p."""
    found = []
    for first, second in combinations([group for group in _groups(runs) if group[0]["tokens"] is not None], 2):
        if any(first[0][field] != second[0][field] for field in _TRAINED_ALIKE):
            continue
        for kind in _KINDS:
            logs = [[math.log(x) for run in each if (x := run["perplexity"][kind])] for each in (first, second)]
            if min(map(len, logs)) > 1:
                (mean_a, sd_a), (mean_b, sd_b) = ((statistics.fmean(x), statistics.stdev(x)) for x in logs)
                p = welch_p(mean_a, sd_a, len(logs[0]), mean_b, sd_b, len(logs[1]))
                found.append((str(first[0]["model"]), str(second[0]["model"]), kind, mean_a - mean_b, p))
    return found


def _pairs_table(compared: Sequence[tuple[str, str, str, float, float]]) -> Table:
    adjusted = holm(np.array([p for *_, p in compared]))
    rows: list[list[Cell | str]] = []
    for (a, b, kind, difference, p), corrected in zip(compared, adjusted, strict=True):
        verdict = "no difference shown"
        if corrected < ALPHA:
            verdict = f"{a if difference < 0 else b} better"
        percent = f"{100 * math.expm1(difference):+.2f} %"
        rows.append([f"{a} over {b}", _KIND_NAMES[kind], percent, f"{p:.2g}", f"{corrected:.2g}", verdict])
    return Table.of(
        f"all {len(compared)} ratios of perplexities, less is better",
        ("pair", "tokens", "ratio − 1", "p", "p (Holm)", "verdict"),
        rows,
        num_keys=2,
    )


TABLE2 = Experiment(
    name="table2",
    title="Perplexity of language models",
    grids=NO_GRIDS,
    measure=measure,
    present=present,
)
