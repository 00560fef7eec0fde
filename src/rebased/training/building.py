"""Whether models can be built, found out before any is trained."""

import json
from collections.abc import Iterable

import torch

from rebased.models import LanguageModel, ModelConfig
from rebased.training.folders import model_of
from rebased.training.recall import RecallConfig

__all__ = ["check_models"]


def check_models(configs: Iterable[RecallConfig]) -> None:
    """ValueError, naming the cell, for a model whose sizes or options do not go together.

    Each model is built once, on the meta device, in milliseconds. Other errors are left to training, which writes
    down where they were.
    """
    cells = {json.dumps(config.model().to_dict(), sort_keys=True): config for config in configs}
    with torch.random.fork_rng(devices=[]):
        for config in cells.values():
            # A mixer that looks at its values fails on the meta device alone.
            error = _error_of(config.model(), "meta") and _error_of(config.model(), "cpu")
            if isinstance(error, (ValueError, TypeError)):
                cell = f"{model_of(config)}-d{config.d_model}-L{config.seq_len}"
                raise ValueError(f"the model of {cell} cannot be built: {error}") from error


def _error_of(config: ModelConfig, device: str) -> Exception | None:
    try:
        with torch.device(device):
            LanguageModel(config)
    except Exception as error:
        return error
    return None
