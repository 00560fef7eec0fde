"""Small sweeps, and a trainer that is none: runs whose fate their learning rate and seed tell."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rebased.training.recall import RecallConfig
from rebased.training.replicas import Record

TINY = RecallConfig(
    stack="rebased",
    d_model=12,
    seq_len=16,
    learning_rate=0.003,
    seed=1,
    task_options={"num_pairs": 4},
    vocab_size=32,
    num_train=64,
    num_test=16,
    epochs=4,
    batch_size=16,
)
DIVERGES = 1e3
"""A learning rate."""
RESULTS = ("config.json", "metrics.jsonl", "result.json", "weights.safetensors")


def tiny(**changes: Any) -> RecallConfig:
    return replace(TINY, **changes)


def results(sweep: Path) -> dict[str, bytes]:
    """Every file of a run that is promised to be the same, however training went."""
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for name in RESULTS for path in sweep.rglob(name)}


class FakeReplicas:
    """The interface of `Replicas`. A run reaches its goal in epoch ``seed``; `DIVERGES` diverges in the second."""

    def __init__(self, configs: Sequence[RecallConfig], *, device: Any = "cpu", micro_batches: int = 1) -> None:
        self.configs = tuple(configs)
        self.active = list(range(len(self.configs)))
        self.epoch = 0
        self.state = torch.tensor([[float(config.seed), config.learning_rate] for config in self.configs])

    def train_epoch(self, on_step: Callable[[int, int], None] | None = None) -> dict[int, Record]:
        for step in range(2):
            self.state = self.state * 1.5 + torch.tensor([self.epoch, step])
            if on_step is not None:
                on_step(step + 1, 2)
        self.epoch += 1
        return {index: self._record(self.configs[index]) for index in self.active}

    def _record(self, config: RecallConfig) -> Record:
        diverged = config.learning_rate == DIVERGES and self.epoch == 2
        accuracy = 1.0 if self.epoch == config.seed else self.epoch / 100
        finished = "reached" if accuracy == 1 else "epochs" if self.epoch == config.epochs else None
        loss = float("nan") if diverged else 1 / self.epoch
        return Record(self.epoch, loss, accuracy, config.learning_rate, "diverged" if diverged else finished)

    def weights(self, index: int) -> dict[str, torch.Tensor]:
        return {"weight": self.state[self.active.index(index)]}

    def leave(self, indices: Iterable[int]) -> None:
        kept = [row for row, index in enumerate(self.active) if index not in set(indices)]
        self.active, self.state = [self.active[row] for row in kept], self.state[kept]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"state": self.state}

    def load(self, epoch: int, active: list[int], tensors: dict[str, torch.Tensor]) -> None:
        self.epoch, self.active, self.state = epoch, list(active), tensors["state"]
