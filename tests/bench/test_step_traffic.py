"""The count of what a compiled step moves."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "step_traffic.py"


@pytest.mark.slow
def test_counts_what_must_be_moved() -> None:
    """Keys alone, 192 wide in bfloat16, are written and read, and so are their gradients."""
    sizes = "--d-model", "16", "--seq-len", "32", "--num-pairs", "4", "--replicas", "2"
    command = sys.executable, str(SCRIPT), "based", "rwkv", *sizes, "--kernels"
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {
        name: [int(number.replace(",", "")) for number in numbers]
        for name, *numbers in re.findall(r"^(\w+): ([\d,]+) .* ([\d,]+) forward and ([\d,]+) back", done.stdout, re.M)
    }
    assert found.keys() == {"based", "rwkv"}
    for total, forward, backward in found.values():
        assert abs(total - forward - backward) <= 1
    _, forward, backward = found["based"]
    assert 2 * 2 * 192 < forward < backward < 16 * 2 * 192
    assert re.search(r"^ +\d+ read +384 written +extern_kernels.bmm$", done.stdout, re.M)
    assert "rebased.attend_backward" in done.stdout
