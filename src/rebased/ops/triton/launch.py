"""Launching a kernel without asking Triton, every time anew, which of its compiled versions fits.

Triton works that out from all arguments in Python, which for kernels of sixty arguments takes longer than the kernels
themselves. Here it is asked once for each combination of constants and of what it specialises arguments on.
"""

from typing import Any

import torch
from torch import Tensor

_compiled: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any,
    num_programs: int,
    tensors: list[Tensor],
    numbers: list[int],
    scalars: list[float],
    constants: dict[str, Any],
    *,
    num_warps: int,
    num_stages: int,
    max_registers: int | None = None,
) -> None:
    """Run ``kernel``, whose parameters are tensors, integers, floats and constants in this order."""
    grid = (num_programs, 1, 1)
    arguments = (*tensors, *numbers, *scalars)
    if not tensors[0].is_cuda:  # the interpreter
        kernel[grid](*arguments, **constants)
        return
    key = (
        kernel,
        tensors[0].device.index,
        num_warps,
        num_stages,
        max_registers,
        *constants.values(),
        *[x.dtype for x in tensors],
        # What Triton specialises on: multiples of 16, the integer 1, and integers beyond 32 bits.
        *[x.data_ptr() % 16 == 0 for x in tensors],
        *[(x % 16 == 0, x == 1, x >= 2**31) for x in numbers],
    )
    found = _compiled.get(key)
    with torch.cuda.device_of(tensors[0]):
        if found is None:
            options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": max_registers}
            compiled = kernel[grid](*arguments, **constants, **options)
            _compiled[key] = compiled, [constants[name] for name in kernel.arg_names[len(arguments) :]]
        else:
            compiled, ordered = found
            compiled[grid](*arguments, *ordered)
