"""The runs whose attention maps are looked at (Table 3, Figures 5, 8 and 9), and how a look at one is kept."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rebased.analysis.summary import summarize
from rebased.models import LanguageModel
from rebased.paper.experiment import Data, Material
from rebased.paper.findings import read_findings
from rebased.paper.recipes import PAPER, SMOKE
from rebased.runs import Run
from rebased.training.recall import RecallConfig

__all__ = ["GRIDS", "GRIDS_OF_WIDEST", "MODELS", "best_runs", "fingerprint", "kept_runs", "load_model", "of_widest"]

MODELS = {"copy_attention": "Attention", "copy_based": "Based", "copy_rebased": "ReBased"}
"""Stacks, and what the paper calls their second layers."""

MEASURE_VERSION = 1
"""To be raised when what is measured changes: what was kept is then measured anew."""

_PAPER = PAPER | {
    "stack": list(MODELS),
    "seq_len": 128,
    "d_model": [32, 48, 64],  # the paper does not say how wide its models were
    "task_options": {"num_pairs": 32},
}
_SMOKE = SMOKE | {
    "seq_len": 32,
    "d_model": 24,
    "task_options": {"num_pairs": 4},
    "learning_rate": [3e-3, 1e-2],
    "seed": [42, 43],
}
GRIDS: dict[str, dict[str, Any]] = {
    "smoke": {"run": _PAPER | _SMOKE},
    "small": {"run": _PAPER | {"learning_rate": [1e-3, 3e-3], "seed": [42, 43]}},
    "paper": {"run": _PAPER},
}


def _only_widest(grid: dict[str, Any]) -> dict[str, Any]:
    widths = grid["run"]["d_model"]
    return {"run": grid["run"] | {"d_model": max(widths) if isinstance(widths, list) else widths}}


GRIDS_OF_WIDEST = {scale: _only_widest(grid) for scale, grid in GRIDS.items()}
"""Of the models that are drawn."""


def best_runs(runs: Sequence[Run]) -> dict[tuple[str, int], tuple[Run, ...]]:
    """By stack and width the runs with its best learning rate, by seed. Those that diverged have no map to look at."""
    sound = [run for run in runs if run.result["finished"] != "diverged"]
    return {(summary.cell["stack"], summary.cell["d_model"]): summary.runs for summary in summarize(sound)}


def of_widest(runs: Mapping[tuple[str, int], tuple[Run, ...]]) -> dict[str, tuple[Run, ...]]:
    """Of `best_runs`' result, the runs of the largest width, by stack."""
    widest = max((width for _, width in runs), default=0)
    return {stack: alike for (stack, width), alike in runs.items() if width == widest}


def load_model(run: Run, device: str) -> tuple[LanguageModel, RecallConfig]:
    """As it was at the end of training, in float32. ValueError for a run that was kept without its weights."""
    config = RecallConfig.from_dict(run.config)
    try:
        weights = run.weights()
    except FileNotFoundError as error:
        raise ValueError(
            f"the run {run.folder.name} has no weights, which its attention maps need; "
            f"remove {run.folder} and train it again"
        ) from error
    model = LanguageModel(config.model())
    model.load_state_dict(weights)
    return model.to(device).eval(), config


def kept_runs(material: Material, experiment: str) -> dict[str, Data]:
    """What an earlier measurement found in these very runs, by name: their weights may be gone since."""
    findings = read_findings(material.out, material.scale, experiment)
    kept: dict[str, Data] = {} if findings is None else findings.data["runs"]
    prints = {run.folder.name: fingerprint(run) for run in material.runs}
    return {name: entry for name, entry in kept.items() if entry["fingerprint"] == prints.get(name)}


def fingerprint(run: Run) -> str:
    """Of how it was trained, losses and all, and of how it is measured: another training has another one."""
    text = json.dumps([MEASURE_VERSION, run.metrics, run.result], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
