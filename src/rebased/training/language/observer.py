"""What happens between two steps: records, losses on the validation split, and when to save."""

import math
import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from rebased.training.language.metrics import StepRecord
from rebased.training.language.stopping import Stop

__all__ = ["Observer"]


class Observer(TrainerCallback):
    """Hears of every step in every process. What it hears of losses is the mean over all of them."""

    def __init__(
        self,
        *,
        tokens_per_step: int,
        utilisation: Callable[[float], float | None],
        write: Callable[[StepRecord], None],
        part_made: Callable[[int, int], None],
        validate: Callable[[], float | None],
        eval_every: int,
        checkpoint_every: int,
        stop: Stop,
    ) -> None:
        """``utilisation``: of the devices' peak, given tokens per second. ``stop``: is looked at after each step.

        ``part_made(step, parts)``: hears how many micro-batches of a step are through, but for the last.
        """
        self._tokens_per_step = tokens_per_step
        self._utilisation = utilisation
        self._write = write
        self._part_made = part_made
        self._validate = validate
        self._eval_every = eval_every
        self._checkpoint_every = checkpoint_every
        self._stop = stop
        self._since = time.perf_counter()
        self._num_parts = 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._since = time.perf_counter()

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._num_parts += 1
        self._part_made(state.global_step + 1, self._num_parts)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._num_parts = 0
        if state.global_step % self._checkpoint_every == 0 or state.global_step == state.max_steps:
            control.should_save = True
        if self._stop.is_asked:
            control.should_save = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """A step's numbers are there: the device has finished it."""
        if logs is None or "loss" not in logs:
            return
        speed = self._tokens_per_step / (time.perf_counter() - self._since)
        step, loss, grad_norm = state.global_step, float(logs["loss"]), float(logs["grad_norm"])
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss of step {step} is {loss}; try a lower learning rate")
        if not math.isfinite(grad_norm):  # the weights have moved by it, and a checkpoint may be due
            raise FloatingPointError(f"the gradients of step {step} have norm {grad_norm}; try a lower learning rate")
        is_due = step == state.max_steps or (self._eval_every > 0 and step % self._eval_every == 0)
        self._write(
            StepRecord(
                step=step,
                loss=loss,
                learning_rate=float(logs["learning_rate"]),
                grad_norm=grad_norm,
                tokens=step * self._tokens_per_step,
                tokens_per_second=speed,
                mfu=self._utilisation(speed),
                validation_loss=self._validate() if is_due else None,
            )
        )
        self._since = time.perf_counter()

    def on_save(self, *_: Any, **__: Any) -> None:
        """Saving is no part of a step."""
        self._since = time.perf_counter()
