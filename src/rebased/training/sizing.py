"""How many runs fit on a device at once."""

import gc

import torch

from rebased.replay import as_recorded
from rebased.training.recall import RecallConfig
from rebased.training.replicas import Replicas

__all__ = ["fitting"]

MAX_REPLICAS = 32
"""More in one program gain nothing, and what is lost with an interrupted epoch grows."""
GOOD_REPLICAS = 8
"""So many share a program's overhead well; for fewer, batches are cut into parts first."""
CPU_REPLICAS = 12
USABLE_MEMORY = 0.75
"""Of what is free: fragments, and what libraries take for themselves, need the rest."""
PROBE_EXAMPLES = (8, 32)


def fitting(
    config: RecallConfig, num_wanted: int, device: torch.device | str, *, num_sharing: int = 1
) -> tuple[int, int]:
    """How many replicas of a run to train together, and into how many parts to cut their batches.

    ``num_wanted``: more there will not be; batches are cut for these alone.
    ``num_sharing``: how many processes are to do so on this device at the same time.
    On a CUDA device one replica's step is tried with a few examples, not compiled, which takes the most memory; what
    it needs grows linearly with the examples.
    """
    device = torch.device(device)
    if device.type != "cuda":
        return max(1, CPU_REPLICAS // num_sharing), 1
    _step_bytes(config, PROBE_EXAMPLES[0], device)  # libraries take what they keep for themselves the first time
    few, more = (_step_bytes(config, count, device) for count in PROBE_EXAMPLES)
    per_example = (more - few) / (PROBE_EXAMPLES[1] - PROBE_EXAMPLES[0])
    fixed = few - PROBE_EXAMPLES[0] * per_example
    usable = USABLE_MEMORY * torch.cuda.mem_get_info(device)[0] / num_sharing
    return _choose(config.batch_size, fixed, per_example, usable, num_wanted)


def _choose(batch_size: int, fixed: float, per_example: float, usable: float, num_wanted: int) -> tuple[int, int]:
    """Batches are cut in half as long as that lets more replicas in, of those wanted."""

    def replicas(micro_batches: int) -> int:
        return int(usable / (fixed + per_example * -(-batch_size // micro_batches)))

    micro_batches = 1
    while replicas(micro_batches) < min(GOOD_REPLICAS, num_wanted) and micro_batches < batch_size:
        more = min(batch_size, 2 * micro_batches)
        if 0 < replicas(micro_batches) == replicas(more):
            break
        micro_batches = more
    return max(1, min(MAX_REPLICAS, replicas(micro_batches))), micro_batches


def _step_bytes(config: RecallConfig, num_examples: int, device: torch.device) -> int:
    """Memory of a step on so many examples and of a test with as many, weights included. Nothing of it stays taken."""
    small = config.but(batch_size=num_examples, num_train=num_examples, num_test=num_examples)
    gc.collect()  # what is found later would seem to be needed less
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    with as_recorded():
        replicas = Replicas([small], device=device, compile=False)
        replicas.train_epoch()
    needed = torch.cuda.max_memory_allocated(device) - before
    del replicas
    gc.collect()
    torch.cuda.empty_cache()  # else torch keeps what it had, and the driver tells us that so much less is free
    return needed
