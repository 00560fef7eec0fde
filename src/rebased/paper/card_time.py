"""How long experiments had a card: groups that train on one at the same time share its time."""

import datetime
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["share_time"]


def share_time(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Seconds of each group, from their logs. Of every moment in which n train on a card, each has the n-th part."""
    borders: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for group, entries in logs.items():
        card = ""
        for entry in entries:
            if entry["event"] == "start":
                card = entry.get("card", "")
            elif entry["event"] == "epoch":
                end = datetime.datetime.fromisoformat(entry["date"]).timestamp()
                borders[card] += [(end - entry["seconds"] - entry["seconds_to_save"], 1, group), (end, -1, group)]
    totals = dict.fromkeys(logs, 0.0)
    for of_card in borders.values():
        epochs: Counter[str] = Counter()  # those of a group may overlap by the rounding of times
        before = 0.0
        for time, step, group in sorted(of_card):
            training = [each for each, count in epochs.items() if count]
            for each in training:
                totals[each] += (time - before) / len(training)
            before = time
            epochs[group] += step
    return totals
