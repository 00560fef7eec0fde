"""Which kernels a step of recall training spends its time in: what to make faster next.

    python benchmarks/profile_steps.py mamba conv_hyena --seq-len 512 --num-pairs 128 --d-model 128

Stacks are compiled at the same time, each in a process of its own, and profiled one after the other.
"""

import argparse
import contextlib
import fcntl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from recall_step import add_step_options, recall_runs

from rebased.bench.mqar import steps_without_end
from rebased.training.replicas import Replicas

LINES = 40
"""Kernels named, of each stack."""


def profile(stack: str, options: argparse.Namespace) -> str:
    """A table of kernels, by milliseconds per replica and step; alone on the card once the others have compiled."""
    replicas = Replicas(recall_runs(stack, options), device="cuda")
    step = steps_without_end(replicas).__next__
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with _alone(Path(options.meeting), options.num_stacks):
        begun = time.perf_counter()
        for _ in range(options.steps):
            step()
        torch.cuda.synchronize()
        per_step = 1e3 * (time.perf_counter() - begun) / options.steps / options.replicas
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            for _ in range(options.steps):
                step()
            torch.cuda.synchronize()
    each = options.steps * options.replicas
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    busy = sum(event.self_device_time_total for event in events) / 1e3 / each
    lines = [f"{stack}: {per_step:.3f} ms per replica and step, {busy:.3f} of them in kernels"]
    for event in events[:LINES]:
        milliseconds = event.self_device_time_total / 1e3 / each
        lines.append(f"  {milliseconds:8.4f}  {event.count / options.steps:5.1f}x  {event.key[:110]}")
    return "\n".join(lines)


@contextlib.contextmanager
def _alone(meeting: Path, num_stacks: int) -> Iterator[None]:
    """Once all stacks have compiled, and it is this one's turn."""
    tempfile.mkstemp(dir=meeting, prefix="ready")
    while len(list(meeting.glob("ready*"))) < num_stacks:
        time.sleep(0.1)
    with (meeting / "turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_step_options(parser)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)  # what follows is for the processes it starts
    parser.add_argument("--num-stacks", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.meeting:
        print(profile(options.stacks[0], options), flush=True)
        return
    with tempfile.TemporaryDirectory() as meeting:
        ends = [f"--meeting={meeting}", f"--num-stacks={len(options.stacks)}"]
        given = [x for x in sys.argv[1:] if x not in options.stacks]
        workers = [subprocess.Popen([sys.executable, __file__, stack, *given, *ends]) for stack in options.stacks]
        try:
            while any(worker.poll() is None for worker in workers):
                if any(worker.poll() for worker in workers):  # the others would wait for it
                    sys.exit("a stack could not be profiled")
                time.sleep(0.2)
        finally:
            for worker in workers:
                worker.kill()
        if any(worker.wait() for worker in workers):
            sys.exit("a stack could not be profiled")


if __name__ == "__main__":
    main()
