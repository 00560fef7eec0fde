"""Configurations by name: Table 9's models, and smaller ones of the same kinds and proportions."""

from collections.abc import Mapping
from typing import Any

from rebased.hf.config import RebasedConfig, alternating, check_known

__all__ = ["PRESETS", "preset"]

_ATTENTION: dict[str, Any] = {
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "layer_types": ["attention"] * 12,
    "layer_options": {"attention": {"qkv_bias": False}},
}
_SMALL: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 4, "max_position_embeddings": 1024}
_MEDIUM: dict[str, Any] = {"hidden_size": 512}
_MEDIUM_HYBRID: dict[str, Any] = {"num_hidden_layers": 12, "num_attention_heads": 32}


PRESETS: dict[str, dict[str, Any]] = {
    "attention": _ATTENTION,
    "based": {"layer_types": alternating("based", 18)},
    "rebased": {"layer_types": alternating("rebased", 18)},
    "attention-medium": _ATTENTION
    | _MEDIUM
    | {"num_hidden_layers": 8, "num_attention_heads": 8, "layer_types": ["attention"] * 8},
    "based-medium": _MEDIUM | _MEDIUM_HYBRID | {"layer_types": alternating("based", 12)},
    "rebased-medium": _MEDIUM | _MEDIUM_HYBRID | {"layer_types": alternating("rebased", 12)},
    "attention-small": _ATTENTION | _SMALL | {"num_attention_heads": 4, "layer_types": ["attention"] * 4},
    "based-small": _SMALL | {"num_attention_heads": 8, "layer_types": alternating("based", 4)},
    "rebased-small": _SMALL | {"num_attention_heads": 8, "layer_types": alternating("rebased", 4)},
}
"""Fields that differ from the defaults."""


def preset(name: str, *, max_positions: int | None = None, **changes: Any) -> RebasedConfig:
    """The configuration of that name, with changed fields; ``max_positions`` is its max_position_embeddings.

    With another ``num_hidden_layers`` the preset's mixers keep their turn. Other ``layer_types`` also say how many
    layers there are, and the preset's options of mixers that are not among them are dropped. ValueError, listing what
    there is, for an unknown name or field.
    """
    if name not in PRESETS:
        raise ValueError(f"name={name!r} is unknown; there are {', '.join(PRESETS)}")
    if max_positions is not None:
        if "max_position_embeddings" in changes:
            raise ValueError("max_positions and max_position_embeddings are two names of one thing; give one")
        changes["max_position_embeddings"] = max_positions
    check_known(changes)
    return RebasedConfig(**PRESETS[name] | _layers(name, changes) | changes)


def _layers(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What goes with a change of the layers."""
    own, types = PRESETS[name], changes.get("layer_types", changes.get("mixers"))
    if isinstance(types, list | tuple):
        options = {mixer: each for mixer, each in own.get("layer_options", {}).items() if mixer in types}
        return {"num_hidden_layers": len(types), "layer_types": types, "layer_options": options}
    number = changes.get("num_hidden_layers")
    if isinstance(number, int):
        return {"layer_types": [own["layer_types"][index % len(own["layer_types"])] for index in range(number)]}
    return {}
