"""Which device is torch's current one while something is done, where there need not be a second."""

import contextlib
from collections.abc import Iterator

import pytest


def watch_current(monkeypatch: pytest.MonkeyPatch, target: str) -> list[str]:
    """The devices that are entered at any time, in a list that goes on changing; ``target`` is a module's `current`."""
    entered = list[str]()

    @contextlib.contextmanager
    def current(device: str) -> Iterator[None]:
        entered.append(device)
        yield
        entered.pop()

    monkeypatch.setattr(target, current)
    return entered
