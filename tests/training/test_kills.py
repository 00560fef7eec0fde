"""Sweeps of the command line, killed at random moments, end as if nothing had happened."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweep_cases import results

GRID = """
[run]
stack = ["rebased", "x2", "based", "attention"]
d_model = 12
seq_len = 16
task_options.num_pairs = 4
vocab_size = 32
num_train = 64
num_test = 16
epochs = 4
batch_size = 16
learning_rate = [3e-3, 1e30]  # the second diverges
seed = 1
"""


class Sweep:
    """The command, as a process whose lines can be waited for."""

    def __init__(self, folder: Path, jobs: int) -> None:
        grid = folder.with_suffix(".toml")
        grid.write_text(GRID)
        arguments = ["sweep", str(grid), "--out", str(folder), "--device", "cpu", "--jobs", str(jobs)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rebased.cli", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def wait_for_lines(self, count: int) -> None:
        for _ in range(count):
            assert self.process.stderr.readline(), "it ended before it was killed"

    def finish(self) -> list[str]:
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        return said.splitlines()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
        assert self.process.returncode == -9


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    assert len(Sweep(folder, jobs=1).finish()) == 1 + 4 * (1 + 4 + 1)
    found = results(folder)
    assert len(found) == 8 * 4
    return found


@pytest.mark.parametrize(("jobs", "num_kills"), [(1, 5), (2, 2)], ids=["serial", "processes"])
def test_killed_sweep_ends_bit_identical(
    jobs: int, num_kills: int, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    """Each life ends up to four lines and a moment after it began; the sweep has lines for more lives than that."""
    moments = random.Random(jobs)
    folder = tmp_path / "sweep"
    for _ in range(num_kills):
        sweep = Sweep(folder, jobs)
        sweep.wait_for_lines(moments.randint(1, 4))
        time.sleep(moments.uniform(0, 0.2))
        sweep.kill()
    Sweep(folder, jobs).finish()
    assert results(folder) == undisturbed
    assert not list(folder.rglob("checkpoint.safetensors"))
    assert Sweep(folder, jobs).finish() == ["8 runs, all finished: nothing to train"]
