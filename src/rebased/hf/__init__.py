"""Language models of these mixers as ordinary Hugging Face models; importing this registers the Auto classes."""

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as error:
    raise ImportError("rebased.hf needs transformers: pip install 'transformers>=5.13'") from error

from rebased.hf.cache import RebasedCache
from rebased.hf.causal_lm import RebasedForCausalLM
from rebased.hf.config import RebasedConfig
from rebased.hf.model import RebasedModel
from rebased.hf.presets import PRESETS, preset

__all__ = ["PRESETS", "RebasedCache", "RebasedConfig", "RebasedForCausalLM", "RebasedModel", "preset"]

AutoConfig.register(RebasedConfig.model_type, RebasedConfig)
AutoModel.register(RebasedConfig, RebasedModel)
AutoModelForCausalLM.register(RebasedConfig, RebasedForCausalLM)
# Where Trainer looks whether labels are to be shifted, when it computes a loss itself (label smoothing).
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[RebasedConfig.model_type] = RebasedForCausalLM.__name__
