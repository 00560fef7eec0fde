"""`rebased bench lm --train`: tokens per second of training, by the length of sequences."""

import dataclasses
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rebased.bench.cells import failure
from rebased.bench.clock import seconds_of
from rebased.bench.lm_models import measure_models
from rebased.bench.lm_train_results import TrainBenchConfig, TrainBenchResult, TrainMeasurement
from rebased.bench.timing import Timing

__all__ = ["run_train_bench"]

_logger = logging.getLogger(__name__)


def run_train_bench(config: TrainBenchConfig, *, progress: Callable[[str], None] = _logger.info) -> TrainBenchResult:
    """Time every model at every length.

    Raises ValueError if ``config.device`` is not on this machine. What fails is recorded as skipped with the reason.
    """
    return TrainBenchResult(**measure_models(config, config.lengths, partial(_measure, config), progress))


def _measure(config: TrainBenchConfig, name: str, length: int) -> TrainMeasurement:
    empty = TrainMeasurement(model=name, length=length, batch_size=config.tokens // length)
    try:
        model = _build(name, length, config)
        empty = dataclasses.replace(empty, parameters=model.num_parameters())
        return _timed(model, empty, config)
    except Exception as error:
        return dataclasses.replace(empty, skipped=failure(error))


def _build(name: str, length: int, config: TrainBenchConfig) -> Any:
    from rebased.hf import RebasedForCausalLM, preset

    torch.compiler.reset()
    torch.manual_seed(config.seed)
    with torch.device(config.torch_device):
        return RebasedForCausalLM(preset(name, max_positions=length, fused_loss=True)).train()


def _timed(model: Any, empty: TrainMeasurement, config: TrainBenchConfig) -> TrainMeasurement:
    device, shape = config.torch_device, (empty.batch_size, empty.length)
    tokens = torch.randint(0, model.config.vocab_size, shape, device=device)
    if config.compile:
        for block in model.model.backbone.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=device.type == "cuda")
    step = partial(_step, model, optimizer, tokens, config)
    first_seconds, _ = seconds_of(step, device)
    seconds_of(step, device)
    timing = Timing.from_samples([seconds_of(step, device)[0] for _ in range(config.repetitions)])
    tokens_per_second = tokens.numel() / timing.median_seconds
    return dataclasses.replace(
        empty,
        timing=timing,
        tokens_per_second=tokens_per_second,
        parameter_flops=6 * model.num_parameters() * tokens_per_second,
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        first_seconds=first_seconds,
    )


def _step(model: Any, optimizer: torch.optim.Optimizer, tokens: Tensor, config: TrainBenchConfig) -> None:
    casts = config.torch_dtype in (torch.bfloat16, torch.float16)
    with torch.autocast(config.device, config.torch_dtype) if casts else nullcontext():
        loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
