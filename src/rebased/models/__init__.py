"""Embeddings, blocks and a head around the mixers; configurations by name."""

from rebased.models.config import LayerConfig, ModelConfig
from rebased.models.language_model import LanguageModel
from rebased.models.presets import PRESETS, preset
from rebased.models.stacks import STACKS
from rebased.models.state import ModelState

__all__ = ["PRESETS", "STACKS", "LanguageModel", "LayerConfig", "ModelConfig", "ModelState", "preset"]
