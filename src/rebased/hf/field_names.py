"""Names that are given for fields of a configuration, and are none: misspelt, or another model's for the same."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from transformers import PretrainedConfig

__all__ = ["check_spelling"]

_OTHER_NAMES = {
    "d_model": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "seq_len": "max_position_embeddings",
    "layers": "layer_types",
    "positions": "position_embedding_type",
    "init_std": "initializer_range",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_ctx": "max_position_embeddings",
    "intermediate_size": "mlp_factor",
    "ffn_dim": "mlp_factor",
    "n_inner": "mlp_factor",
    "hidden_ratio": "mlp_factor",
    "dropout": "residual_dropout",
    "hidden_dropout": "residual_dropout",
    "hidden_dropout_prob": "residual_dropout",
    "resid_pdrop": "residual_dropout",
    "embd_pdrop": "embedding_dropout",
} | dict.fromkeys(
    ("num_key_value_heads", "num_kv_heads", "expand_k", "expand_v", "conv_size", "window_size", "sliding_window"),
    "layer_options",
)
"""How the rest of the package, or other models, call what is a field here or an argument of a mixer."""
_CLOSE = 0.8
"""How alike, of 1, a name and a field's are for it to be a misspelling."""


def check_spelling(names: Iterable[str], fields: Sequence[str]) -> None:
    """ValueError for one that would be stored beside the field that was meant; others than those may be anyone's."""
    for name in (name for name in names if name not in fields):
        meant = _OTHER_NAMES.get(name) or _misspelt(name, fields)
        if meant is not None:
            raise ValueError(f"there is no field {name!r}, it is {meant!r} here; there are {', '.join(fields)}")


def _misspelt(name: str, fields: Sequence[str]) -> str | None:
    """None for a name of its own: one of the base class, a hidden one, or a field's name after another word."""
    is_its_own = name.startswith("_") or hasattr(PretrainedConfig, name)
    if is_its_own or any(name.endswith(f"_{field}") for field in fields):
        return None
    return next(iter(get_close_matches(name, fields, n=1, cutoff=_CLOSE)), None)
