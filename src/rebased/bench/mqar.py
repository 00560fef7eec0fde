"""`rebased bench mqar`: the time of a training step, everything included, per replica."""

import gc
import logging
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rebased.bench.cells import failure
from rebased.bench.clock import seconds_of
from rebased.bench.memory import peak_memory
from rebased.bench.mqar_results import MqarBenchConfig, MqarBenchResult, MqarMeasurement
from rebased.bench.timing import time_call
from rebased.training.order import epoch_order
from rebased.training.replicas import Replicas

__all__ = ["run_mqar_bench", "steps_without_end"]

_logger = logging.getLogger(__name__)


def run_mqar_bench(config: MqarBenchConfig, *, progress: Callable[[str], None] = _logger.info) -> MqarBenchResult:
    """Time steps at every length with every number of replicas. What fails is recorded as skipped with the reason.

    Raises ValueError if ``config.device`` is not on this machine.
    """
    measurements = []
    with config.measuring() as circumstances:
        for length in config.lengths:
            for replicas in config.replicas:
                progress(f"{replicas} replicas at {length} tokens")
                measurements.append(_measure(length, replicas, config))
        return MqarBenchResult(**circumstances(), measurements=tuple(measurements))


def _measure(length: int, num_replicas: int, config: MqarBenchConfig) -> MqarMeasurement:
    device = config.torch_device
    _forget(device)
    try:
        runs = [config.run(length, seed) for seed in range(num_replicas)]
        replicas = Replicas(runs, device=device, micro_batches=config.micro_batches)
        step = steps_without_end(replicas).__next__
        first_seconds, _ = seconds_of(step, device)
        timing = time_call(step, device=device, min_repetitions=config.min_repetitions, min_seconds=config.min_seconds)
        peak = _peak_memory(step, device)
    except Exception as error:
        return MqarMeasurement(length=length, replicas=num_replicas, skipped=failure(error))
    return MqarMeasurement(
        length=length,
        replicas=num_replicas,
        timing=timing,
        step_seconds=timing.median_seconds / num_replicas,
        peak_bytes=peak,
        first_seconds=first_seconds,
    )


def steps_without_end(replicas: Replicas) -> Iterator[Tensor]:
    """Steps as an epoch has them, without end: choosing the examples is part of each."""
    cell = replicas.cell
    examples = cell.train_set(1, replicas.device)
    seeds = [config.seed for config in replicas.configs]
    order = epoch_order(seeds, 1, len(examples), replicas.device)
    learning_rates = torch.full((len(seeds),), cell.learning_rate, device=replicas.device)
    while True:
        for rows in order.split(cell.batch_size, dim=1):
            yield replicas.train_step(examples, rows, learning_rates)


def _peak_memory(step: Callable[[], object], device: torch.device) -> int:
    """On a CUDA device since `_forget`: steps that are recorded take their memory once and for all."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_memory(step, device=device)


def _forget(device: torch.device) -> None:
    """What the last cell left: memory, and programs compiled for its sizes."""
    gc.collect()
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
