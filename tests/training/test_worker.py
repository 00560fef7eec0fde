"""Processes that train: how they end."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sweep_cases import tiny

from rebased.training.engines.worker import Worker
from rebased.training.events import Started
from rebased.training.execute import GroupTask
from rebased.training.plan import Group

SLOW = Group((tiny(num_train=400_000),), micro_batches=1)
"""A minute at least passes before the end of an epoch."""

PARENT = """
import sys, time
from pathlib import Path
from rebased.training.engines import engine
from rebased.training.engines.worker import Worker
from rebased.training.execute import GroupTask
from test_worker import SLOW

def begin_and_say_no_more(task, device, report):
    report("begun")
    time.sleep(600)

engine.train_group = begin_and_say_no_more  # in the worker too, which imports this file

if __name__ == "__main__":
    worker = Worker("cpu", 1)
    worker.give(GroupTask(Path(), SLOW))
    assert worker.receive() == "begun"
    print(worker._process.pid, flush=True)
    time.sleep(600)
"""


def busy_worker(folder: Path) -> Worker:
    worker = Worker("cpu", 1)
    worker.give(GroupTask(folder, SLOW))
    assert isinstance(worker.receive(), Started)
    return worker


def test_one_that_has_nothing_to_do_ends_by_itself() -> None:
    """Not by a signal: what it registered for its end is done."""
    worker = Worker("cpu", 1)
    worker.stop()
    assert worker._process.exitcode == 0


def test_one_that_is_still_importing_leaves_interrupts_to_who_started_it() -> None:
    """Ctrl-C goes to all; it said so with a traceback."""
    worker = Worker("cpu", 1)
    assert worker._process.pid is not None
    os.kill(worker._process.pid, signal.SIGINT)
    worker.stop()
    assert worker._process.exitcode == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_one_at_work_is_ended_at_once(tmp_path: Path) -> None:
    worker = busy_worker(tmp_path)
    worker.stop()
    assert worker._process.exitcode == -signal.SIGTERM


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see who lives")
def test_orphans_end(tmp_path: Path) -> None:
    """One would hold its group's lock: while it compiles, say, for a minute in which it does not notice anything."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent:
        orphan = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 20
    while is_alive(orphan) and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        assert not is_alive(orphan)
    finally:
        if is_alive(orphan):
            os.kill(orphan, signal.SIGKILL)


def is_alive(pid: int) -> bool:
    """Also false for a zombie, which only its new parent can bury."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
