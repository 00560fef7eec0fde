"""Evaluations of language models: read from files, grouped by what they are of, and compared.

They are files ``lm/<name>.json`` in the folder of all results, one for each model and seed, as `rebased lm eval --out`
writes them::

    {"model": "rebased", "seed": 1, "parameters": …, "tokens": …, "corpus": "…", "ar_fraction": …,
     "perplexity": {"all": …, "ar": …, "non_ar": …}, …}

``model``, ``seed`` and ``tokens`` are null for a model that says nothing of its training.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from rebased.analysis.holm import holm
from rebased.analysis.welch import welch_p
from rebased.paper.experiment import Data, Material
from rebased.paper.recipes import ALPHA

__all__ = [
    "KINDS",
    "NAMES",
    "TRAINED_ALIKE",
    "Ratio",
    "family_of",
    "group_runs",
    "mean_text",
    "measure",
    "ratios",
]

NAMES = {"attention": "Attention", "based": "Based", "rebased": "ReBased"}
"""Families of models, and what the paper calls them."""
KINDS = {"all": "all", "ar": "AR", "non_ar": "non-AR"}
"""Of tokens."""
TRAINED_ALIKE = ("tokens", "recipe", "corpus", "num_tokens", "config")
"""Runs that compare; ``recipe`` says how they were trained, ``num_tokens`` and ``config`` how they were evaluated."""
_ALIKE = ("model", "parameters", "changes", *TRAINED_ALIKE)
"""Runs that differ in nothing else than the seed."""
_READ = ("model", "parameters", "tokens", "corpus", "num_tokens", "config", "seed", "ar_fraction", "perplexity")
_MADE_WITH = ("device_name", "commit", "rebased", "torch", "triton")


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
        training = values.get("training") or {}
        trained = training.get("config") or {}
        found["changes"] = trained.get("changes")
        found["recipe"] = {name: trained[name] for name in trained if name not in ("model", "changes", "seed")} or None
        environment = training.get("environment") or {}
        found["made_with"] = {name: environment[name] for name in _MADE_WITH if name in environment}
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no result of a language model: {error!r}") from error


def group_runs(runs: Sequence[Data]) -> list[list[Data]]:
    """Runs that differ in the seed alone; one whose seed nobody knows stands for itself."""
    found: dict[str, list[Data]] = {}
    for index, run in enumerate(runs):
        own = index if run["seed"] is None else None
        found.setdefault(json.dumps([run[field] for field in _ALIKE] + [own], sort_keys=True), []).append(run)
    return list(found.values())


def family_of(group: Sequence[Data]) -> str:
    return str(group[0]["model"]).split("-")[0]


def mean_text(runs: Sequence[Data], kind: str) -> str:
    """Of perplexities."""
    values = [run["perplexity"][kind] for run in runs if run["perplexity"][kind] is not None]
    if not values:  # as where no token recurs
        return "—"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


@dataclass(frozen=True)
class Ratio:
    """Perplexities of two models on one kind of tokens."""

    groups: tuple[int, int]
    """Their places among the groups compared: several may be of one model, trained in different ways."""
    a: str
    b: str
    """Of the models."""
    kind: str
    log: float
    """Of a's over b's: negative where a is better."""
    p_value: float
    """Welch's."""
    adjusted_p: float
    """Holm's, over all ratios."""

    @property
    def better_group(self) -> int | None:
        """The one that is shown to be."""
        if self.adjusted_p >= ALPHA:
            return None
        return self.groups[0 if self.log < 0 else 1]

    @property
    def better(self) -> str | None:
        """Its model."""
        if self.better_group is None:
            return None
        return self.a if self.better_group == self.groups[0] else self.b


def ratios(groups: Sequence[Sequence[Data]]) -> list[Ratio]:
    """Of all groups of runs (`group_runs`) trained and evaluated alike, with several seeds."""
    found = []
    for places in combinations(range(len(groups)), 2):
        first, second = (groups[place] for place in places)
        if first[0]["tokens"] is None or any(first[0][field] != second[0][field] for field in TRAINED_ALIKE):
            continue
        for kind in KINDS:
            logs = [[math.log(x) for run in each if (x := run["perplexity"][kind])] for each in (first, second)]
            if min(map(len, logs)) > 1:
                (mean_a, sd_a), (mean_b, sd_b) = ((statistics.fmean(x), statistics.stdev(x)) for x in logs)
                p = welch_p(mean_a, sd_a, len(logs[0]), mean_b, sd_b, len(logs[1]))
                found.append((places, str(first[0]["model"]), str(second[0]["model"]), kind, mean_a - mean_b, p))
    if not found:
        return []
    adjusted = holm(np.array([p for *_, p in found]))
    return [Ratio(*each, float(p)) for each, p in zip(found, adjusted, strict=True)]
