"""Which parameters decay, and how fast they move."""

import math

from torch import nn

from rebased.training.language.config import LanguageRunConfig

__all__ = ["decayed", "learning_rate_factor"]


def decayed(model: nn.Module) -> list[str]:
    """Names of the weights of Linear layers and convolutions, and of embeddings.

    Not decayed: norms, biases, γ, β and mixers' other parameters, such as the decays of scans: for most of these zero
    is not a neutral value.
    """
    return [name for name, x in model.named_parameters() if x.ndim > 1 and name.endswith(".weight")]


def learning_rate_factor(config: LanguageRunConfig, step: int) -> float:
    """Of the step after ``step`` others: a line up over the warm-up, then half a cosine down to the last step."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(config.steps - 1 - config.warmup_steps, 1)
    least = config.final_fraction
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
