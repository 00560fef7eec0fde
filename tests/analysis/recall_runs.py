"""Finished recall runs, made by hand."""

from pathlib import Path

import torch

from rebased.analysis.recall_rows import RecallRow
from rebased.runs import Run, read_run, write_config, write_metrics, write_result, write_weights

GOAL = 0.9


def make_run(folder: Path, accuracies: list[float], seed: int = 1, learning_rate: float = 0.003) -> Run:
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
            "learning_rate": learning_rate,
            "seed": seed,
        },
    )
    write_metrics(folder, [{"epoch": i + 1, "accuracy": x} for i, x in enumerate(accuracies)])
    write_weights(folder, {"a": torch.zeros(2, 3), "b": torch.zeros(1)})
    finished = "reached" if accuracies[-1] >= GOAL else "epochs"
    write_result(folder, {"accuracy": max(accuracies), "epochs": len(accuracies), "finished": finished})
    return read_run(folder)


def make_row(folder: Path, name: str, *curves: list[float]) -> RecallRow:
    """A run for each curve, and one at another learning rate that has learned nothing."""
    runs = tuple(make_run(folder / name / str(seed), curve, seed) for seed, curve in enumerate(curves))
    other = make_run(folder / name / "other", [0.1], 0, learning_rate=0.01)
    return RecallRow({}, 0.003, runs, (*runs, other), name)
