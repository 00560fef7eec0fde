"""Where a bench runs and with what numbers: what the benches' configs have in common."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rebased.bench import checks
from rebased.bench.contention import ContentionMeter
from rebased.bench.threads import threads
from rebased.environment import describe_environment

__all__ = ["OnMachine"]


class OnMachine:
    """Mixed into configs that have these fields."""

    device: str
    dtype: str
    threads: int | None

    def check_machine(self) -> None:
        """Raise ValueError if this machine lacks what it takes. Construction does not: results are read anywhere."""
        checks.check_machine(self.device, self.threads)

    @contextmanager
    def measuring(self) -> Iterator[Callable[[], dict[str, Any]]]:
        """In here torch runs on ``threads``; ValueError if this machine lacks what it takes.

        The function that it gives is called in here too, at the end: it tells what every result says of where it was
        made, as fields of `rebased.bench.files.BenchResult`.
        """
        self.check_machine()
        contention = ContentionMeter()
        with threads(self.threads):
            yield lambda: {
                "config": self,
                "environment": describe_environment(self.torch_device),
                "other_cpus": contention.other_cpus(),
            }

    @property
    def torch_device(self) -> torch.device:
        """``device`` as torch knows it."""
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch knows it."""
        return checks.DTYPES[self.dtype]
