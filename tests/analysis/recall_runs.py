"""Finished recall runs, made by hand."""

from pathlib import Path

import torch

from rebased.analysis.recall_rows import RecallRow
from rebased.runs import Run, read_run, write_config, write_metrics, write_result, write_weights

GOAL = 0.9


def make_run(folder: Path, accuracies: list[float], seed: int = 1) -> Run:
    """One that ended with the last of these accuracies, an epoch each; 10 steps an epoch, 7 parameters."""
    write_config(
        folder,
        {
            "stack": "rebased",
            "task": "mqar",
            "task_options": {"num_pairs": 4},
            "d_model": 48,
            "seq_len": 32,
            "vocab_size": 64,
            "dtype": "float32",
            "num_train": 99,
            "num_test": 1000,
            "batch_size": 10,
            "endless": True,
            "epochs": 20,
            "stop_above": GOAL,
            "weight_decay": 0.1,
            "learning_rate": 0.003,
            "seed": seed,
        },
    )
    write_metrics(folder, [{"epoch": i + 1, "accuracy": x} for i, x in enumerate(accuracies)])
    write_weights(folder, {"a": torch.zeros(2, 3), "b": torch.zeros(1)})
    finished = "reached" if accuracies[-1] >= GOAL else "epochs"
    write_result(folder, {"accuracy": max(accuracies), "epochs": len(accuracies), "finished": finished})
    return read_run(folder)


def make_row(folder: Path, name: str, *curves: list[float]) -> RecallRow:
    """A run for each curve."""
    runs = [make_run(folder / name / str(seed), curve, seed) for seed, curve in enumerate(curves)]
    return RecallRow(name=name, runs=tuple(runs), learning_rates=(0.003, 0.01))
