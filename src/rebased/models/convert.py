"""Weights of others: the paper's published recall models, and flash-linear-attention's ReBased layer."""

import re
from collections.abc import Mapping

from torch import Tensor

from rebased.layers import ReBased
from rebased.models.language_model import LanguageModel
from rebased.models.presets import preset

__all__ = ["PUBLISHED_STACKS", "layer_from_fla", "model_from_published"]

PUBLISHED_STACKS = ("based", "rebased", "x2", "norm_x2", "gamma_x2", "gamma_beta_x2")
"""Rows of Table 1 whose weights have known names. The names alone do not tell some of them apart."""

_PUBLISHED = {
    r"backbone\.embeddings\.word_embeddings\.": "embedding.",
    r"backbone\.embeddings\.position_embeddings\.": "position_embedding.",
    r"backbone\.ln_f\.": "norm.",
    r"backbone\.layers\.(\d+)\.norm1\.": r"blocks.\1.norm.",
    r"backbone\.layers\.(\d+)\.norm2\.": r"blocks.\1.after_norm.",
    r"backbone\.layers\.(\d+)\.sequence_mixer\.(?:mixer\.)?projection\.": r"blocks.\1.mixer.proj.",
    r"backbone\.layers\.(\d+)\.sequence_mixer\.(?:mixer\.)?conv\.conv\.": r"blocks.\1.mixer.conv.",
    r"backbone\.layers\.(\d+)\.sequence_mixer\.(?:mixer\.)?proj_([qkvo])\.": r"blocks.\1.mixer.\2_proj.",
    r"backbone\.layers\.(\d+)\.sequence_mixer\.(?:mixer\.)?ln_q\.(?:weight|gamma)": r"blocks.\1.mixer.gammas.0",
    r"backbone\.layers\.(\d+)\.sequence_mixer\.(?:mixer\.)?ln_k\.(?:weight|gamma)": r"blocks.\1.mixer.gammas.1",
    r"backbone\.layers\.(\d+)\.sequence_mixer\.(?:mixer\.)?ln_q\.(?:bias|beta)": r"blocks.\1.mixer.betas.0",
    r"backbone\.layers\.(\d+)\.sequence_mixer\.(?:mixer\.)?ln_k\.(?:bias|beta)": r"blocks.\1.mixer.betas.1",
}
"""The published code's names, and ours."""


def model_from_published(weights: Mapping[str, Tensor], *, stack: str) -> LanguageModel:
    """A recall model with the weights that the published code saved for a row of Table 1.

    Sizes are read from the weights. ValueError, naming what, for another ``stack``, and for names or shapes that do not
    fit it.
    """
    if stack not in PUBLISHED_STACKS:
        raise ValueError(f"stack={stack!r} is not one of {', '.join(PUBLISHED_STACKS)}")
    renamed = {_rename(name): x for name, x in weights.items() if name != "lm_head.weight"}  # tied
    for name in [name for name in renamed if name.endswith(".conv.weight") and renamed[name].ndim == 3]:
        renamed[name] = renamed[name].squeeze(1)  # (channels, 1, taps): one channel each
    if stack == "gamma_x2":  # the published code keeps a shift that it does not use
        renamed = {name: x for name, x in renamed.items() if ".betas." not in name}
    for name in ("embedding.weight", "position_embedding.weight"):
        if name not in renamed:
            raise ValueError(f"weights lack what would be our {name}; they are not those of a recall model")
    vocab_size, d_model = renamed["embedding.weight"].shape
    seq_len = renamed["position_embedding.weight"].shape[0]
    model = LanguageModel(preset(f"mqar-{stack}", d_model=d_model, seq_len=seq_len, vocab_size=vocab_size))
    _load(model, renamed, f"a {stack!r} model of d_model {d_model}")
    return model


def layer_from_fla(weights: Mapping[str, Tensor], *, num_heads: int, normalize: bool = True) -> ReBased:
    """Our layer with the weights of flash-linear-attention's ``ReBasedLinearAttention``.

    It has as many heads of keys and values as of queries. Sizes are read from the weights. ValueError, naming what, for
    names or shapes that do not fit.
    """
    for name in ("q_proj.weight", "v_proj.weight"):
        if name not in weights:
            raise ValueError(f"weights lack {name}; they have {', '.join(weights)}")
        if weights[name].shape[0] % num_heads:
            raise ValueError(f"num_heads={num_heads} does not divide the {weights[name].shape[0]} rows of {name}")
    renamed = dict(weights)
    moved = {"feature_map.gamma": "gammas.0", "feature_map.beta": "betas.0"}
    for name in moved.keys() & renamed.keys():
        renamed[moved[name]] = renamed.pop(name)
    query = weights["q_proj.weight"]
    layer = ReBased(
        query.shape[1],
        norm=normalize,
        gamma="gammas.0" in renamed,
        beta="betas.0" in renamed,
        norm_scope="head",
        num_heads=num_heads,
        feature_dim=query.shape[0] // num_heads,
        head_dim=weights["v_proj.weight"].shape[0] // num_heads,
        eps=1e-5,  # what that layer adds to the normaliser
    )
    _load(layer, renamed, f"a ReBased layer of {num_heads} heads")
    return layer


def _rename(name: str) -> str:
    for pattern, ours in _PUBLISHED.items():
        if re.match(pattern, name):
            return re.sub(pattern, ours, name)
    raise ValueError(f"weights have {name}, which the published models of Table 1 do not")


def _load(module: LanguageModel | ReBased, weights: dict[str, Tensor], what: str) -> None:
    wanted = {name: x.shape for name, x in module.state_dict().items()}
    wrong = [f"{name} is missing" for name in wanted.keys() - weights.keys()]
    wrong += [f"{name} is not part of it" for name in weights.keys() - wanted.keys()]
    wrong += [
        f"{name} has shape {tuple(weights[name].shape)} instead of {tuple(shape)}"
        for name, shape in wanted.items()
        if name in weights and weights[name].shape != shape
    ]
    if wrong:
        raise ValueError(f"weights do not fit {what}: {'; '.join(sorted(wrong))}")
    module.to(next(iter(weights.values())).dtype).load_state_dict(weights)
