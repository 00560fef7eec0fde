"""Where a bench runs and with what numbers: what the benches' configs have in common."""

import torch

from rebased.bench import checks

__all__ = ["OnMachine"]


class OnMachine:
    """Mixed into configs that have these fields."""

    device: str
    dtype: str
    threads: int | None

    def check_machine(self) -> None:
        """Raise ValueError if this machine lacks what it takes. Construction does not: results are read anywhere."""
        checks.check_machine(self.device, self.threads)

    @property
    def torch_device(self) -> torch.device:
        """``device`` as torch knows it."""
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch knows it."""
        return checks.DTYPES[self.dtype]
