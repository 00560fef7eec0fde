"""Every kernel compiled to machine code for a GPU that need not be there: ``python tests/compile_kernels.py``.

Triton's interpreter, in which the other tests run kernels, says nothing of what its compiler makes of them, least of
all in bfloat16. Here calls go their whole way but for the launch. Each kernel's bytes of shared memory are written
out as JSON.
"""

import json
import os
import sys
from typing import Any

CAPABILITY = int(sys.argv[1]) if len(sys.argv) > 1 else 90
os.environ.pop("TRITON_INTERPRET", None)

from triton.backends.compiler import GPUTarget  # noqa: E402  # reads the variable
from triton.compiler.compiler import CompiledKernel  # noqa: E402
from triton.runtime import driver  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from every_kernel import run_every_kernel  # noqa: E402
from rebased.ops import backends  # noqa: E402


class AbsentGPU:
    """What Triton asks its driver before it compiles."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)


def main() -> None:
    shared_memory: dict[str, list[int]] = {}
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> CompiledKernel:
        compiled = run(kernel, *args, grid=grid, warmup=True, **constants)
        shared_memory.setdefault(kernel.fn.__name__, []).append(compiled.metadata.shared)
        return compiled

    JITFunction.run = compile_only
    CompiledKernel.__getitem__ = lambda self, grid: lambda *args: None  # launched once more
    driver.set_active(AbsentGPU())
    backends.IS_INTERPRETED = True  # tensors on a CPU are let through
    run_every_kernel("cpu")
    json.dump(shared_memory, sys.stdout)


if __name__ == "__main__":
    main()
