"""The command line as a process whose lines can be waited for, and which can be killed."""

import os
import subprocess
import sys


class CommandProcess:
    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rebased.cli", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def wait_for_lines(self, count: int) -> None:
        assert self._process.stderr is not None
        for _ in range(count):
            assert self._process.stderr.readline(), "it ended before it was killed"

    def finish(self) -> list[str]:
        """What it said until its end, which must be a good one."""
        _, said = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, said
        return said.splitlines()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        assert self._process.returncode == -9
