"""Whether a timing had the machine to itself: the processors that others kept busy meanwhile."""

import os
import time
from pathlib import Path

__all__ = ["ContentionMeter"]


class ContentionMeter:
    """Measures from its construction on. A CPU timing means little while other processes want the same processors."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._machine = _machine_seconds()
        self._own = time.process_time()

    def other_cpus(self) -> float | None:
        """The mean number of processors that other processes kept busy so far; None where the system does not say."""
        machine = _machine_seconds()
        wall = time.monotonic() - self._wall
        if machine is None or self._machine is None or wall <= 0:
            return None
        others = machine - self._machine - (time.process_time() - self._own)
        return max(0.0, others / wall)


def _machine_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """Seconds of processor time spent on anything since boot, summed over processors."""
    try:
        name, *fields = stat.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    if name != "cpu":
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
