"""Launching a kernel without asking Triton, every time anew, which of its compiled versions fits.

Triton works that out from all arguments in Python, which for kernels of sixty arguments takes longer than the kernels
themselves. Here it is asked once for each combination of what it specialises arguments on.
"""

from typing import Any

import torch
import triton
from torch import Tensor

MOST_CALLS = 1024
"""Different combinations of numbers that are remembered at once."""


class Launcher:
    """A kernel whose constants are fixed. Its parameters are tensors, integers, floats and constants in this order."""

    def __init__(
        self,
        kernel: Any,
        constants: dict[str, Any],
        *,
        num_warps: int,
        num_stages: int,
        max_registers: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.constants = constants
        self.options = {"num_warps": num_warps, "num_stages": num_stages}
        if max_registers is not None:
            self.options["maxnreg"] = max_registers
        self.is_interpreted = not isinstance(kernel, triton.JITFunction)
        self._compiled: dict[tuple[Any, ...] | None, tuple[Any, list[Any]]] = {}
        self._calls: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}
        """The same by the numbers themselves, which are quicker to look up; of the last few that came."""

    def __call__(self, num_programs: int, tensors: list[Tensor], numbers: list[int], scalars: list[float]) -> None:
        grid = (num_programs, 1, 1)
        if self.is_interpreted:
            self.kernel[grid](*tensors, *numbers, *scalars, **self.constants)
            return
        aligned = [x.data_ptr() % 16 == 0 for x in tensors]
        kinds = (tensors[0].device, *[x.dtype for x in tensors], *aligned)
        call = (*kinds, *numbers)
        known = self._calls.get(call)
        special = None if known else (*kinds, *map(_specialised, numbers))
        found = known or self._compiled.get(special)
        with torch.cuda.device_of(tensors[0]):
            if found:
                compiled, constants = found
                compiled[grid](*tensors, *numbers, *scalars, *constants)
            else:
                compiled = self.kernel[grid](*tensors, *numbers, *scalars, **self.constants, **self.options)
                names = self.kernel.arg_names[len(tensors) + len(numbers) + len(scalars) :]
                found = self._compiled[special] = compiled, [self.constants[name] for name in names]
        if not known:
            if len(self._calls) >= MOST_CALLS:
                self._calls.clear()
            self._calls[call] = found


def _specialised(number: int) -> tuple[bool, bool, bool]:
    """What of an integer is compiled in; of a pointer it is whether it is a multiple of 16."""
    return number == 1, number % 16 == 0, -(2**31) <= number < 2**31
