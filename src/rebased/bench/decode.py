"""`rebased bench decode`: one token with a state, beside one token with a cache of keys and values."""

import dataclasses
import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rebased.bench.cells import failure
from rebased.bench.decode_results import DecodeBenchConfig, DecodeBenchResult, DecodeMeasurement
from rebased.bench.timing import time_call
from rebased.bench.verify import check_step
from rebased.kernels import REBASED
from rebased.ops import initial_state, kernel_attention_step
from rebased.ops.dtypes import sums_dtype
from rebased.replay import Replay

__all__ = ["run_decode_bench"]

_logger = logging.getLogger(__name__)

Step = tuple[Callable[[], object], int]
"""A step that can be made any number of times, and the bytes it keeps from one to the next."""


def run_decode_bench(config: DecodeBenchConfig, *, progress: Callable[[str], None] = _logger.info) -> DecodeBenchResult:
    """Check the step, then time it and SDPA's at every context.

    Raises ValueError if ``config.device`` is not on this machine, and WrongBackendError if the step is wrong. What
    fails is recorded as skipped with the reason.
    """
    with config.measuring() as circumstances, torch.no_grad():
        progress("checking the step against the float64 reference")
        error = check_step(
            backend=config.backend,
            device=config.torch_device,
            dtype=config.torch_dtype,
            feature_dim=config.feature_dim,
            head_dim=config.head_dim,
            seed=config.seed,
        )
        progress("timing a step with a state")
        state = _measure("state", None, _state_step, config)
        cached = []
        for context in config.contexts:
            progress(f"timing a step with {context} tokens in the cache")
            cached.append(_measure("sdpa", context, _sdpa_step, config))
        return DecodeBenchResult(
            **circumstances(),
            error=error,
            measurements=tuple(_with_slowdown(each, state) for each in (state, *cached)),
        )


def _measure(
    candidate: str,
    context: int | None,
    build: Callable[[int | None, DecodeBenchConfig], Step],
    config: DecodeBenchConfig,
) -> DecodeMeasurement:
    try:
        step, held_bytes = build(context, config)
        timing = time_call(
            Replay(step, config.torch_device) if config.graphs else step,
            device=config.torch_device,
            min_repetitions=config.min_repetitions,
            min_seconds=config.min_seconds,
        )
    except Exception as error:
        return DecodeMeasurement(candidate=candidate, context=context, skipped=failure(error))
    return DecodeMeasurement(candidate=candidate, context=context, held_bytes=held_bytes, timing=timing)


def _state_step(context: int | None, config: DecodeBenchConfig) -> Step:
    B, H, F, D = config.batch_size, config.num_heads, config.feature_dim, config.head_dim
    normal = _random(config)
    q, k, v = normal(B, H, F), normal(B, H, F), normal(B, H, D)
    state = initial_state(REBASED, B, H, F, D, device=q.device, dtype=sums_dtype(q.dtype))

    def step() -> Tensor:
        return kernel_attention_step(q, k, v, state, REBASED, inplace=True, backend=config.backend)[0]

    return step, state.nbytes


def _sdpa_step(context: int | None, config: DecodeBenchConfig) -> Step:
    """Write the token into a cache made beforehand, where it is the last of ``context``, and attend to all of them."""
    assert context is not None
    B, H, D = config.batch_size, config.sdpa_heads, config.sdpa_head_dim
    normal = _random(config)
    q, k, v = (normal(B, H, 1, D) for _ in range(3))
    keys, values = normal(B, H, context, D), normal(B, H, context, D)

    def step() -> Tensor:
        keys[:, :, -1:] = k
        values[:, :, -1:] = v
        return scaled_dot_product_attention(q, keys, values)

    return step, keys.nbytes + values.nbytes


def _random(config: DecodeBenchConfig) -> Callable[..., Tensor]:
    generator = torch.Generator(config.torch_device).manual_seed(config.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=config.torch_device, dtype=config.torch_dtype)

    return normal


def _with_slowdown(measurement: DecodeMeasurement, state: DecodeMeasurement) -> DecodeMeasurement:
    if measurement.timing is None or state.timing is None:
        return measurement
    slowdown = measurement.timing.median_seconds / state.timing.median_seconds
    return dataclasses.replace(measurement, slowdown=slowdown)
