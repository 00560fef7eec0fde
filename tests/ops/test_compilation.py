"""All Triton kernels compile to machine code, on a machine without a GPU too."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

TESTS = Path(__file__).parents[1]
KERNELS = TESTS.parent / "src" / "rebased" / "ops" / "triton"
MOST_SHARED_MEMORY = 99 * 1024
"""Of a program, on the smallest of GPUs with compute capability 8.0 or more; an H200 has 227 KiB."""


def test_every_kernel_compiles() -> None:
    """bfloat16 as well, which the interpreter cannot do."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, TESTS / "compile_kernels.py"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    shared_memory = json.loads(done.stdout)
    assert set(shared_memory) == set(_names_of_kernels())
    assert max(map(max, shared_memory.values())) <= MOST_SHARED_MEMORY


def _names_of_kernels() -> list[str]:
    return [
        name
        for path in KERNELS.glob("*.py")
        for name in re.findall(r"^@triton\.jit.*\ndef (\w+_kernel)\(", path.read_text(), re.MULTILINE)
    ]
