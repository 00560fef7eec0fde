"""`rebased bench lm --generate`: tokens per second of ``generate``, by the length of what comes before them."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rebased.bench.cells import failure
from rebased.bench.clock import seconds_of
from rebased.bench.lm_generate_results import GenerateBenchConfig, GenerateBenchResult, GenerateMeasurement
from rebased.bench.lm_models import measure_models
from rebased.bench.timing import Timing

__all__ = ["run_generate_bench"]

_logger = logging.getLogger(__name__)


def run_generate_bench(
    config: GenerateBenchConfig, *, progress: Callable[[str], None] = _logger.info
) -> GenerateBenchResult:
    """Time every model at every length.

    Raises ValueError if ``config.device`` is not on this machine. What fails is recorded as skipped with the reason.
    """
    return GenerateBenchResult(**measure_models(config, config.contexts, partial(_measure, config), progress))


def _measure(config: GenerateBenchConfig, name: str, context: int) -> GenerateMeasurement:
    parameters = None
    try:
        model = _build(name, context, config)
        parameters = model.num_parameters()
        return _timed(model, name, context, parameters, config)
    except Exception as error:
        return GenerateMeasurement(model=name, context=context, parameters=parameters, skipped=failure(error))


def _build(name: str, context: int, config: GenerateBenchConfig) -> Any:
    from rebased.hf import RebasedForCausalLM, preset

    torch.manual_seed(config.seed)
    with torch.device(config.torch_device):
        model = RebasedForCausalLM(preset(name, max_positions=context + config.max_generated)).eval()  # type: ignore[no-untyped-call]
    return model.to(config.torch_dtype)


def _timed(model: Any, name: str, context: int, parameters: int, config: GenerateBenchConfig) -> GenerateMeasurement:
    device = config.torch_device
    prompt = torch.randint(0, model.config.vocab_size, (config.batch_size, context), device=device)
    _generate(model, prompt[:, : min(context, 256)], None, config.new_tokens)  # compilers and recorders are done then
    _generate(model, prompt, None, 1)
    prompt_seconds, (tokens, cache) = seconds_of(partial(_generate, model, prompt, None, 1), device)
    held_bytes = cache.nbytes
    samples: list[float] = []
    for repetition in range(1 + config.repetitions):
        if repetition == 1 and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        seconds, (tokens, cache) = seconds_of(partial(_generate, model, tokens, cache, config.new_tokens), device)
        samples.append(seconds)
    timing = Timing.from_samples(samples[1:])
    return GenerateMeasurement(
        model=name,
        context=context,
        parameters=parameters,
        prompt_seconds=prompt_seconds,
        timing=timing,
        tokens_per_second=config.batch_size * config.new_tokens / timing.median_seconds,
        held_bytes=held_bytes,
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )


def _generate(model: Any, tokens: Tensor, cache: Any, num: int) -> tuple[Tensor, Any]:
    """All tokens and the cache, after so many more, whatever they are."""
    from transformers import GenerationConfig

    how = GenerationConfig(max_new_tokens=num, do_sample=False, return_dict_in_generate=True, pad_token_id=0)
    # All tokens are real, also those that are 0: generate would make a mask of them.
    out: Any = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), generation_config=how, past_key_values=cache
    )
    return out.sequences, out.past_key_values
