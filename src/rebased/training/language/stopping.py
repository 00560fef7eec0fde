"""A run that is asked to stop does so after the step it is at, which is not lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

__all__ = ["Stop", "stopping_after_a_step"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SECONDS = 5.0
"""For an announcement to end."""


@dataclass
class Stop:
    """Whether a signal has asked the run to stop."""

    is_asked: bool = False


@contextmanager
def stopping_after_a_step(enabled: bool, announce: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """In here the first SIGINT or SIGTERM only asks; another one does what it always does.

    ``announce`` is called at once when it asks, in a thread of its own: the main thread may be anywhere, also in the
    midst of a print, which cannot be begun a second time.

    Not ``enabled`` for several processes: each would stop after a step of its own, and wait for the others.
    """
    stop, announcing = Stop(), threading.Thread(target=announce, daemon=True)
    if not enabled or threading.current_thread() is not threading.main_thread():  # only there are signals heard
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.is_asked = True
        restore()
        announcing.start()

    for number in _SIGNALS:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        restore()
        if announcing.is_alive():
            announcing.join(_SECONDS)
