"""A process that trains the groups it is given, and its handle in the process that started it."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch

from rebased.training.engines.engine import attempt
from rebased.training.events import Event, Failed
from rebased.training.execute import GroupTask

__all__ = ["Worker", "WorkerDiedError"]


PATIENCE = 10.0
"""Seconds that a worker without a task has to come to its end."""


class WorkerDiedError(RuntimeError):
    """The process ended without being told to."""


class Worker:
    """The handle. Each worker has a pipe of its own: one that dies cannot spoil another's messages."""

    def __init__(self, device: str, num_threads: int) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.connection, other_end = context.Pipe()
        self._process = context.Process(target=_work, args=(other_end, device, num_threads))
        with _interrupts_held_back():
            self._process.start()
        other_end.close()  # the worker has it, so that its death is the end of the messages
        self.task: GroupTask | None = None
        self.has_failed = False
        """After an error a GPU may refuse everything: the next group had better get another process."""

    def give(self, task: GroupTask) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # if it is dead, `receive` will say so
            self.connection.send(task)

    def receive(self) -> Event | None:
        """What it reports; None when the task is done with. WorkerDiedError if there is nobody to report."""
        try:
            message: Event | None = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            raise WorkerDiedError(f"its worker died, exit code {self._process.exitcode}") from None
        if message is None:
            self.task = None
        self.has_failed |= isinstance(message, Failed)
        return message

    def dismiss(self) -> None:
        """Let it come to its end by itself, if it has nothing to do: then libraries put away what they have open."""
        if self.task is None:
            self.connection.close()

    def stop(self) -> None:
        """See to it that it has ended: at once if it is at work, for that can be gone on with."""
        self.dismiss()
        if self.task is None:
            self._process.join(PATIENCE)
        self._process.terminate()
        self._process.join()
        self.connection.close()


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """What is started in here hears no Ctrl-C until it says what to do with it: imports take it seconds before that."""
    if os.name == "nt":
        yield
        return
    from multiprocessing.resource_tracker import ensure_running

    ensure_running()  # the first process would start it, and that lets interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, device: str, num_threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all; the one who started us ends us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(num_threads)
    while True:
        try:
            task = connection.recv()
        except EOFError:  # there is no more to do
            return
        attempt(task, device, connection.send)
        connection.send(None)


def _die_with_parent() -> None:
    """An orphan would go on to hold its group's lock."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
