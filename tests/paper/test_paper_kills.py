"""`rebased paper run`, killed twice, finds what it finds undisturbed."""

import json
import os
import subprocess
import sys
from pathlib import Path

from rebased.paper.findings import findings_path


class PaperRun:
    """The command, as a process whose lines can be waited for."""

    def __init__(self, out: Path) -> None:
        arguments = ["paper", "run", "figure10", "--scale", "smoke", "--device", "cpu", "--out", str(out)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rebased.cli", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def finish(self, out: Path) -> object:
        _, said = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, said
        return json.loads(findings_path(out, "smoke", "figure10").read_text())["data"]

    def kill_after(self, num_lines: int) -> None:
        """Of the plan, of groups that begin and end, and of epochs."""
        assert self.process.stderr is not None
        for _ in range(num_lines):
            assert self.process.stderr.readline(), "it ended before it was killed"
        self.process.kill()
        self.process.communicate()
        assert self.process.returncode == -9


def test_nothing_is_lost(tmp_path: Path) -> None:
    undisturbed = PaperRun(tmp_path / "a").finish(tmp_path / "a")
    for num_lines in (3, 6):
        PaperRun(tmp_path / "b").kill_after(num_lines)
    kept = set((tmp_path / "b").rglob("result.json"))
    assert kept
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert PaperRun(tmp_path / "b").finish(tmp_path / "b") == undisturbed
    assert {path: path.stat().st_mtime_ns for path in kept} == times
