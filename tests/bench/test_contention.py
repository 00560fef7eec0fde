"""How many processors others kept busy, from counters set by hand."""

import os
from pathlib import Path

import pytest

from rebased.bench import contention
from rebased.bench.contention import ContentionMeter, _machine_seconds


def test_counters_by_hand(tmp_path: Path) -> None:
    """User, nice, system, irq, softirq and steal count; idle, iowait and guest do not."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  1 2 4 1000 1000 8 16 32 1000 1000\ncpu0 9 9 9 9 9 9 9 9 9 9\n")
    assert _machine_seconds(stat) == 63 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("text", ["", "intr 1 2 3\n"], ids=["empty", "other"])
def test_unreadable_counters(tmp_path: Path, text: str) -> None:
    stat = tmp_path / "stat"
    assert _machine_seconds(stat) is None
    stat.write_text(text)
    assert _machine_seconds(stat) is None


def test_own_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 10 seconds the machine worked 16, this process 11 of them: others kept half a processor busy."""
    now = {"wall": 100.0, "own": 20.0, "machine": 1000.0}
    monkeypatch.setattr(contention.time, "monotonic", lambda: now["wall"])
    monkeypatch.setattr(contention.time, "process_time", lambda: now["own"])
    monkeypatch.setattr(contention, "_machine_seconds", lambda: now["machine"])
    meter = ContentionMeter()
    now.update(wall=110.0, own=31.0, machine=1016.0)
    assert meter.other_cpus() == pytest.approx(0.5)


def test_unknown_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_machine_seconds", lambda: None)
    assert ContentionMeter().other_cpus() is None
