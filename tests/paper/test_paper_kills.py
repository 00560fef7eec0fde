"""`rebased paper run`, killed twice, finds what it finds undisturbed."""

import json
from pathlib import Path

from command_process import CommandProcess
from rebased.paper.findings import findings_path


def start(out: Path) -> CommandProcess:
    return CommandProcess("paper", "run", "figure10", "--scale", "smoke", "--device", "cpu", "--out", str(out))


def found(out: Path) -> object:
    start(out).finish()
    return json.loads(findings_path(out, "smoke", "figure10").read_text())["data"]


def test_nothing_is_lost(tmp_path: Path) -> None:
    undisturbed = found(tmp_path / "a")
    for num_lines in (3, 6):  # of the plan, of groups that begin and end, and of epochs
        process = start(tmp_path / "b")
        process.wait_for_lines(num_lines)
        process.kill()
    kept = set((tmp_path / "b").rglob("result.json"))
    assert kept
    times = {path: path.stat().st_mtime_ns for path in kept}
    assert found(tmp_path / "b") == undisturbed
    assert {path: path.stat().st_mtime_ns for path in kept} == times
