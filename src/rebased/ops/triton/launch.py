"""Launching a kernel without asking Triton, every time anew, which of its compiled versions fits.

Triton works that out from all arguments in Python, which for kernels of sixty arguments takes longer than the kernels
themselves. Here it is asked once for each combination of what it specialises arguments on.
"""

from typing import Any

import torch
import triton
from torch import Tensor


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
        self._compiled: dict[tuple[Any, ...], tuple[Any, list[Any]]] = {}

    def __call__(self, num_programs: int, tensors: list[Tensor], numbers: list[int], scalars: list[float]) -> None:
        grid = (num_programs, 1, 1)
        if self.is_interpreted:
            self.kernel[grid](*tensors, *numbers, *scalars, **self.constants)
            return
        # Whether pointers and integers are multiples of 16, and integers 1, is compiled in.
        aligned = [x.data_ptr() % 16 == 0 for x in tensors]
        key = (tensors[0].device, *[x.dtype for x in tensors], *aligned, *numbers)
        found = self._compiled.get(key)
        with torch.cuda.device_of(tensors[0]):
            if found is None:
                compiled = self.kernel[grid](*tensors, *numbers, *scalars, **self.constants, **self.options)
                names = self.kernel.arg_names[len(tensors) + len(numbers) + len(scalars) :]
                self._compiled[key] = compiled, [self.constants[name] for name in names]
            else:
                compiled, constants = found
                compiled[grid](*tensors, *numbers, *scalars, *constants)
