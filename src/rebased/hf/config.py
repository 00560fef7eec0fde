"""The configuration, in Hugging Face's names."""

import os
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from rebased.checks import check_choice
from rebased.hf.field_names import check_spelling
from rebased.hf.remote import AUTO_MAP, write_module
from rebased.layers import MIXERS
from rebased.models import LayerConfig, ModelConfig
from rebased.models.config import POSITIONS, check_mixers

__all__ = ["RebasedConfig", "alternating", "check_known"]


class RebasedConfig(PretrainedConfig):
    """A language model of any mixers: the paper's ReBased model by default (`rebased.hf.presets` has the others)."""

    model_type = "rebased"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012  # Trainer adds to it, and a tuple would not do

    def __init__(
        self,
        *,
        vocab_size: int = 50304,
        hidden_size: int = 768,
        num_hidden_layers: int = 18,
        num_attention_heads: int = 64,
        feature_dim: int = 16,
        head_dim: int | None = None,
        max_position_embeddings: int = 4096,
        position_embedding_type: str = "learned",
        layer_types: Sequence[str] | None = None,
        mixers: Sequence[str] | None = None,
        layer_options: Mapping[str, Mapping[str, Any]] | None = None,
        mlp_factor: int = 4,
        embedding_dropout: float = 0.0,
        residual_dropout: float = 0.0,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        tie_word_embeddings: bool = True,
        fused_loss: bool = False,
        **kwargs: Any,
    ) -> None:
        """``layer_types``: a mixer for each layer, names of `rebased.layers.MIXERS`.

        By default the short convolution and ReBased take turns. They are saved as ``mixers``, because transformers
        has layer types of its own and refuses a file with others.
        ``layer_options``: arguments of mixers, by name, beside what the other fields say (heads, feature_dim, lengths).
        ``head_dim``: of kernel mixers' values; hidden_size // num_attention_heads unless given.
        ``fused_loss``: in training, the loss is computed without the logits, and none are returned.
        ``kwargs``: what `PretrainedConfig` takes, and anything else that other libraries store with a configuration.
        ValueError, naming the field, for values that no model can have, for names that look like a misspelt field, and
        for names that other models have for one of these fields.
        """
        check_spelling(kwargs, _fields())
        sizes = {
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "num_hidden_layers": num_hidden_layers,
            "num_attention_heads": num_attention_heads,
            "feature_dim": feature_dim,
            "max_position_embeddings": max_position_embeddings,
        }
        for name, value in sizes.items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}={value!r} must be a positive integer")
        for name, mixer_names in (("layer_types", layer_types), ("mixers", mixers)):
            if isinstance(mixer_names, str):
                raise ValueError(f"{name}={mixer_names!r} must be a list, with the name of a mixer for each layer")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.feature_dim = feature_dim
        self.head_dim = head_dim
        self.max_position_embeddings = max_position_embeddings
        self.position_embedding_type = position_embedding_type
        self.layer_options = _copied_options(layer_options)
        self.mlp_factor = mlp_factor
        self.embedding_dropout = embedding_dropout
        self.residual_dropout = residual_dropout
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        self.fused_loss = fused_loss
        if not tie_word_embeddings:
            raise ValueError("tie_word_embeddings=False is not supported: the head shares the embeddings' weights")
        super().__init__(**kwargs | {"tie_word_embeddings": True, "auto_map": AUTO_MAP})
        if layer_types is not None and mixers is not None and list(layer_types) != list(mixers):
            raise ValueError("layer_types and mixers differ; they are two names of one thing")
        default = alternating("rebased", num_hidden_layers)
        self.mixers = list(next(given for given in (layer_types, mixers, default) if given is not None))
        check_choice("position_embedding_type", position_embedding_type, POSITIONS)
        self.to_model_config()

    @property
    def layer_types(self) -> list[str] | None:
        """None while the base class is at work, which would rename some."""
        return self.__dict__.get("mixers")

    @layer_types.setter
    def layer_types(self, names: Sequence[str]) -> None:
        self.mixers = list(names)
        self.num_hidden_layers = len(self.mixers)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """ValueError for the configuration of another architecture, whose weights are not ours."""
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise ValueError(f"this is the configuration of a {found!r} model, not of a {cls.model_type!r} one")
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """With a module that finds our classes from there."""
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
        write_module(Path(save_directory))

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing to do: the base class would have our source files copied beside the weights."""

    def validate(self) -> None:
        """All of the class's checks; the base class's own would not find the one that is replaced here."""
        for name in dir(type(self)):
            if name.startswith("validate_"):
                getattr(self, name)()

    def validate_layer_type(self) -> None:
        """In place of the base class's: ours are mixers."""
        if self.layer_types is None:
            return
        check_mixers(*self.layer_types, *self.layer_options)
        unused = [name for name in self.layer_options if name not in self.layer_types]
        if unused:
            there_are = ", ".join(dict.fromkeys(self.layer_types))
            raise ValueError(f"layer_options has options of {', '.join(unused)}, and the layers are {there_are}")
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types has {len(self.layer_types)} entries, num_hidden_layers is {self.num_hidden_layers}; "
                "they change together"
            )

    def to_model_config(self) -> ModelConfig:
        """The same in our names. ValueError if fields were changed so that they do not go together."""
        self.validate_layer_type()
        return ModelConfig(
            d_model=self.hidden_size,
            seq_len=self.max_position_embeddings,
            layers=tuple(self._layer(index, name) for index, name in enumerate(self.mixers)),
            vocab_size=self.vocab_size,
            positions=self.position_embedding_type,
            mlp_factor=self.mlp_factor,
            embedding_dropout=self.embedding_dropout,
            residual_dropout=self.residual_dropout,
            init_std=self.initializer_range,
        )

    def _layer(self, index: int, mixer: str) -> LayerConfig:
        known = {
            "num_heads": self.num_attention_heads,
            "feature_dim": self.feature_dim,
            "head_dim": self.head_dim,
            "seq_len": self.max_position_embeddings,
            "layer": index,
            "num_layers": self.num_hidden_layers,
        }
        taken = signature(MIXERS[mixer]).parameters
        options = {name: value for name, value in known.items() if name in taken and value is not None}
        return LayerConfig(mixer=mixer, options=options | self.layer_options.get(mixer, {}), after="mlp")


def alternating(mixer: str, num_layers: int) -> list[str]:
    """Names of layers: the short convolution and a mixer in turn, as the paper's language models have them."""
    return [("short_conv", mixer)[index % 2] for index in range(num_layers)]


def check_known(names: Iterable[str]) -> None:
    """ValueError for a name that neither this configuration nor transformers has, saying which mixers take it."""
    fields, of_transformers = _fields(), PretrainedConfig()
    check_spelling(names, fields)
    for name in names:
        is_known = name in fields or hasattr(of_transformers, name) or name.endswith("_token_id")
        if not is_known:
            takers = [repr(mixer) for mixer, make in MIXERS.items() if name in signature(make).parameters]
            hint = f"; it is an argument of {', '.join(takers)}, for layer_options" if takers else ""
            raise ValueError(f"there is no field {name!r}{hint}; there are {', '.join(fields)}")


def _fields() -> list[str]:
    known = signature(RebasedConfig).parameters
    return [name for name, parameter in known.items() if parameter.kind is parameter.KEYWORD_ONLY]


def _copied_options(options: Mapping[str, Mapping[str, Any]] | None) -> dict[str, dict[str, Any]]:
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(each, Mapping) for each in options.values()):
        raise ValueError(f"layer_options={options!r} must have the arguments of mixers by name: {{'mixer': {{…}}}}")
    return {name: dict(each) for name, each in options.items()}
