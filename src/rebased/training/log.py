"""How the training of a group went: times, memory, machine. Results do not depend on it."""

import datetime
import json
from pathlib import Path
from typing import Any

__all__ = ["append_log", "read_log"]


def append_log(path: Path, **entry: Any) -> None:
    """A line of JSON with the date."""
    path.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
    with path.open("a+b") as file:
        line = json.dumps({"date": date} | entry) + "\n"
        file.write((_end_of_torn_line(path) + line).encode())


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines in order, without those that a killed process left unfinished; none if there is no file."""
    if not path.exists():  # runs may have been brought here without it
        return []
    entries = []
    for line in path.read_text().splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return entries


def _end_of_torn_line(path: Path) -> str:
    with path.open("rb") as file:
        if file.seek(0, 2) == 0:
            return ""
        file.seek(-1, 2)
        return "" if file.read() == b"\n" else "\n"
