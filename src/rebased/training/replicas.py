"""Runs of one cell, trained together: seeds and learning rates differ, one program serves all."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rebased.tasks import Examples
from rebased.training.optimizer import AdamW
from rebased.training.order import epoch_order
from rebased.training.recall import RecallConfig
from rebased.training.stacked import StackedModels

__all__ = ["Record", "Replicas"]

MAX_TEST_LOGITS = 1 << 28
"""In memory at a time while testing."""


@dataclass(frozen=True)
class Record:
    """What an epoch of one run came to."""

    epoch: int
    """1 is the first."""
    loss: float
    """In training, the mean over its steps."""
    accuracy: float
    """On the test set, at labelled positions."""
    learning_rate: float
    finished: str | None
    """None, "reached" (the accuracy it stops above), "epochs" (all are done) or "diverged" (the loss is not finite)."""
    watched: dict[str, list[float | None]] = field(default_factory=dict)
    """Of each parameter that the run watches, mean and standard deviation (n); None for what is not finite."""


class Replicas:
    """Runs that differ in seed and learning rate alone, each trained as if it were by itself.

    A run's initial weights, order of examples and dropout are functions of its seed, the epoch and the step. So a
    run does not depend on others, and training that goes on from `tensors` gives what it would have given without an
    interruption.
    """

    def __init__(
        self,
        configs: Sequence[RecallConfig],
        *,
        device: torch.device | str = "cpu",
        micro_batches: int = 1,
        compile: bool | None = None,
    ) -> None:
        """``compile`` the steps: on a GPU, unless told otherwise. ``micro_batches``: parts of a batch, for memory."""
        self.configs = tuple(configs)
        _check(self.configs, micro_batches)
        self.device = torch.device(device)
        self.micro_batches = micro_batches
        self.active = list(range(len(self.configs)))
        self.epoch = 0
        cell = self.configs[0]
        self.cell = cell
        compile = self.device.type == "cuda" if compile is None else compile
        self._compiles = compile
        if compile:
            torch.compiler.reset()  # torch allows a few programs per function; those of earlier runs are of no more use
        self.models = StackedModels(
            cell.model(),
            [config.seed for config in self.configs],
            device=self.device,
            dtype=torch.float64 if cell.dtype == "float64" else torch.float32,
            autocast=torch.bfloat16 if cell.dtype == "bfloat16" else None,
            compile=compile,
        )
        self.optimizer = AdamW(list(self.models.weights.values()), weight_decay=cell.weight_decay, compile=compile)
        self._train_set: Examples | None = None
        self._test_set = cell.test_set(self.device)

    def train_epoch(self, on_step: Callable[[int, int], None] | None = None) -> dict[int, Record]:
        """One epoch of all active runs, and a test. ``on_step`` is called with the steps done and their number."""
        examples = self._examples_of_epoch()
        seeds = [self.configs[i].seed for i in self.active]
        order = epoch_order(seeds, self.epoch + 1, len(examples), self.device)
        rates = [self.configs[i].learning_rate_in(self.epoch + 1) for i in self.active]
        learning_rates = torch.tensor(rates, dtype=self.models.dtype, device=self.device)
        total = torch.zeros(len(self.active), dtype=torch.float64, device=self.device)
        num_steps = self.cell.steps_per_epoch
        for step in range(num_steps):
            rows = order[:, step * self.cell.batch_size : (step + 1) * self.cell.batch_size]
            total += self.train_step(examples, rows, learning_rates)
            if on_step is not None:
                on_step(step + 1, num_steps)
        self.epoch += 1
        total.masked_fill_(self.models.not_finite(), math.nan)  # what the last step led to has no loss yet
        losses = (total / num_steps).tolist()
        accuracies, watched = self.accuracies(), self._watched()
        return {
            i: Record(self.epoch, loss, accuracy, rate, self._finished(loss, accuracy), moments)
            for i, loss, accuracy, rate, moments in zip(self.active, losses, accuracies, rates, watched, strict=True)
        }

    def _watched(self) -> list[dict[str, list[float | None]]]:
        """Of each active run."""
        if not self.cell.watch:
            return [{} for _ in self.active]
        found = self.models.moments(re.compile(self.cell.watch))
        by_name = {
            name: [[x if math.isfinite(x) else None for x in row] for row in moments.tolist()]
            for name, moments in found.items()
        }
        return [{name: rows[row] for name, rows in by_name.items()} for row in range(len(self.active))]

    def train_step(
        self, examples: Examples, rows: Int[Tensor, "R B"], learning_rates: Float[Tensor, " R"]
    ) -> Float[Tensor, " R"]:
        """One step on a batch of each run; the losses before it."""
        losses, grads = self.gradients(examples, rows)
        self.optimizer.step(grads, learning_rates)
        return losses

    def gradients(self, examples: Examples, rows: Int[Tensor, "R B"]) -> tuple[Float[Tensor, " R"], list[Tensor]]:
        """Each run's loss on its batch, and what the optimizer is given; the next call may overwrite them."""
        weights = list(self.models.weights.values())
        size = -(-self.cell.batch_size // self.micro_batches)
        num_rows = rows.shape[1]
        # An epoch's last batch may be smaller. It is filled up with examples that do not count: one shape, one program.
        rows = torch.nn.functional.pad(rows, (0, size * self.micro_batches - num_rows))
        counts = (torch.arange(rows.shape[1], device=self.device) < num_rows).to(weights[0].dtype)
        losses, grads = torch.zeros((), device=self.device), [torch.zeros((), device=self.device)] * len(weights)
        for part in range(self.micro_batches):
            chosen = slice(part * size, (part + 1) * size)
            num_counting = min(num_rows - chosen.start, size)
            if num_counting <= 0:
                break
            batch = rows[:, chosen]
            part_losses, part_grads = self.models.gradients(
                examples.inputs[batch],
                examples.positions[batch],
                examples.answers[batch],
                counts=counts[chosen],
                step=self.optimizer.num_steps,
                first_row=chosen.start,
            )
            share = num_counting / num_rows
            if part == 0 and share == 1:
                return part_losses, part_grads
            losses = losses + share * part_losses
            grads = [total + share * grad for total, grad in zip(grads, part_grads, strict=True)]
        return losses, grads

    def accuracies(self) -> list[float]:
        """On the test set."""
        test = self._test_set
        logits_each = len(self.active) * test.answers.shape[1] * self.cell.vocab_size
        size = max(1, min(len(test), self.cell.batch_size // self.micro_batches, MAX_TEST_LOGITS // logits_each))
        correct = torch.zeros(len(self.active), dtype=torch.int64, device=self.device)
        for start in range(0, len(test), size):
            rows = torch.arange(start, start + size, device=self.device)
            part = test[rows.clamp(max=len(test) - 1)]  # the last part is filled up, and what fills it does not count
            right = self.models.predictions(part.inputs, part.positions) == part.answers
            correct += (right & (rows < len(test))[:, None]).sum(dim=(1, 2))
        return (correct.double() / test.answers.numel()).tolist()

    def _examples_of_epoch(self) -> Examples:
        if self._train_set is None or self.cell.endless:
            self._train_set = self.cell.train_set(self.epoch + 1, self.device)
        return self._train_set

    def _finished(self, loss: float, accuracy: float) -> str | None:
        if not math.isfinite(loss):
            return "diverged"
        if accuracy >= self.cell.stop_above:
            return "reached"
        return "epochs" if self.epoch >= self.cell.epochs else None

    def leave(self, indices: Iterable[int]) -> None:
        """Take these runs out: they cost nothing any more."""
        gone = set(indices)
        rows = [row for row, index in enumerate(self.active) if index not in gone]
        if len(rows) == len(self.active):
            return
        self.active = [self.active[row] for row in rows]
        chosen = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self.models.keep(chosen)
        self.optimizer.keep(chosen, list(self.models.weights.values()))

    def weights(self, index: int) -> dict[str, Tensor]:
        """Of an active run, on the CPU, as `LanguageModel.load_state_dict` takes them."""
        return {name: x.cpu() for name, x in self.models.weights_of(self.active.index(index)).items()}

    def tensors(self) -> dict[str, Tensor]:
        """All that training goes on from, on the CPU."""
        names = list(self.models.weights)
        tensors = {f"weights.{name}": x.detach() for name, x in self.models.weights.items()}
        for kind, values in (("means", self.optimizer.means), ("squares", self.optimizer.squares)):
            tensors |= {f"{kind}.{name}": x for name, x in zip(names, values, strict=True)}
        tensors["num_steps"] = torch.tensor(self.optimizer.num_steps)
        return {name: x.to("cpu", copy=True).contiguous() for name, x in tensors.items()}

    def load(self, epoch: int, active: list[int], tensors: dict[str, Tensor]) -> None:
        """Go on from what `tensors` gave, after so many epochs, with these runs. ValueError for another model's."""
        _check_weights({name: x.shape[1:] for name, x in self.models.weights.items()}, tensors)
        gone = set(self.active) - set(active)
        if gone and self._compiles:
            # Programs are compiled for the first number of runs they see. So that sums are in the same order as if
            # nothing had been interrupted, that is all of them.
            some = torch.zeros(len(self.active), 1, dtype=torch.int64, device=self.device)
            self.gradients(self._examples_of_epoch(), some)
        self.leave(gone)
        if self.active != list(active):
            raise ValueError(f"active={active} must be some of {self.active}, in that order")
        with torch.no_grad():
            for place, (name, x) in enumerate(self.models.weights.items()):
                x.copy_(tensors[f"weights.{name}"])
                self.optimizer.means[place].copy_(tensors[f"means.{name}"])
                self.optimizer.squares[place].copy_(tensors[f"squares.{name}"])
        self.optimizer.num_steps = int(tensors["num_steps"])
        self.epoch = epoch


def _check_weights(shapes: dict[str, torch.Size], tensors: dict[str, Tensor]) -> None:
    """A mixer's code may have changed since, which no config shows: part of the weights would be new, or dropped."""
    saved = {name.removeprefix("weights."): x.shape[1:] for name, x in tensors.items() if name.startswith("weights.")}
    different = [
        f"{name} is {_shape(saved.get(name))} there and {_shape(shapes.get(name))} here"
        for name in saved | shapes
        if saved.get(name) != shapes.get(name)
    ]
    if different:
        raise ValueError(
            f"the checkpoint is another model's: {', '.join(different)}; restore the code it was made with, or begin "
            "anew in another folder"
        )


def _shape(shape: torch.Size | None) -> str:
    return "absent" if shape is None else str(tuple(shape))


def _check(configs: tuple[RecallConfig, ...], micro_batches: int) -> None:
    if not configs:
        raise ValueError("configs is empty; there must be at least one run")
    cell = configs[0].cell()
    for config in configs[1:]:
        different = [name for name, value in config.cell().items() if value != cell[name]]
        if different:
            raise ValueError(f"runs trained together differ in {', '.join(different)}; only learning_rate and seed may")
    if not 1 <= micro_batches <= configs[0].batch_size:
        raise ValueError(f"micro_batches={micro_batches} must be from 1 to the batch size, {configs[0].batch_size}")
