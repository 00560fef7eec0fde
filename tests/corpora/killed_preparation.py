"""Preparations that are killed at every step, each in a process of its own; run as a script by ``test_interruption``.

The steps are the calls that change the disk: opening, writing, syncing, renaming and removing files. A process that is
killed while it writes has written the half. One interpreter forks them all, as starting one takes seconds.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rebased.corpora import byte_tokenizer, pieces, prepare, writing
from rebased.corpora.growing_file import GrowingFile

WATCHED = {"open", "os.rename", "os.remove"}


class Steps:
    """Counts, and kills the process at step ``last``."""

    def __init__(self, last: int | None) -> None:
        self.taken = 0
        self._last = last

    def take(self, before_death: Callable[[], object] = lambda: None) -> None:
        self.taken += 1
        if self.taken == self._last:
            before_death()
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, folder: Path) -> None:
        write = GrowingFile.write

        def counted_write(file: GrowingFile, data: bytes) -> None:
            self.take(lambda: write(file, data[: len(data) // 2]))
            write(file, data)

        def counted_fsync(descriptor: int) -> None:
            self.take()  # no more: what was written survives a process without it, and faster

        def watch_event(event: str, arguments: tuple[Any, ...]) -> None:
            if event in WATCHED and str(arguments[0]).startswith(str(folder)):
                self.take()

        GrowingFile.write = counted_write  # type: ignore[method-assign]
        os.fsync = counted_fsync
        sys.addaudithook(watch_event)


def prepare_in_a_fork(sources: list[str], out: Path, last: int | None) -> int:
    """How the process ended: -9 for killed, else 0."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            steps = Steps(last)
            steps.watch(out)
            prepare(sources, out, validation=0.5, shard_tokens=150)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: str, *arguments: str) -> None:
    """A folder for each step: killed there, some killed once more a little later, then finished."""
    sources = list(arguments)
    byte_tokenizer()  # imports what takes long, before the forks
    gc.freeze()  # and leaves its memory shared
    pieces.PIECE = 40
    writing._BATCH_PIECES = 5
    writing._COMMIT_SECONDS = 1e9
    assert prepare_in_a_fork(sources, Path(folder) / "whole" / "out", None) == 0
    step = 0
    ended = -9
    while ended == -9:
        step += 1
        out = Path(folder) / f"killed-{step}" / "out"
        ended = prepare_in_a_fork(sources, out, step)
        if step % 4 == 0:
            prepare_in_a_fork(sources, out, 25)
        assert prepare_in_a_fork(sources, out, None) == 0
    assert ended == 0
    sys.stdout.write(str(step))


if __name__ == "__main__":
    main(*sys.argv[1:])
