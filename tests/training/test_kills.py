"""Sweeps of the command line, killed at random moments, end as if nothing had happened."""

import random
import time
from pathlib import Path

import pytest
from sweep_cases import results

from command_process import CommandProcess

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


def start(folder: Path, jobs: int) -> CommandProcess:
    grid = folder.with_suffix(".toml")
    grid.write_text(GRID)
    return CommandProcess("sweep", str(grid), "--out", str(folder), "--device", "cpu", "--jobs", str(jobs))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    assert len(start(folder, jobs=1).finish()) == 1 + 4 * (1 + 4 + 1)
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
        sweep = start(folder, jobs)
        sweep.wait_for_lines(moments.randint(1, 4))
        time.sleep(moments.uniform(0, 0.2))
        sweep.kill()
    start(folder, jobs).finish()
    assert results(folder) == undisturbed
    assert not list(folder.rglob("checkpoint.safetensors"))
    assert start(folder, jobs).finish() == ["8 runs, all finished: nothing to train"]
