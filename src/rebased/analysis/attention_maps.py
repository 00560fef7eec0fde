"""Attention maps: how much each token of a sequence takes from each one before it, in a model's layer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from rebased.layers import MIXERS, Mixer
from rebased.layers.checks import checked_arguments
from rebased.models import LanguageModel, ModelState

__all__ = ["attention_map"]


@torch.no_grad()
def attention_map(
    model: LanguageModel, tokens: Int[Tensor, "B T"], *, layer: int = -1, at: Int[Tensor, "B P"] | None = None
) -> Float[Tensor, "B P T"]:
    """The weights with which a layer adds up its values, averaged over heads; at positions ``at`` only, if given.

    Rows are normalised over all tokens up to the query. ``layer`` counts from 0, or from the end if negative. Any mixer
    with a method ``attention_weights(x, at)``, (B, H, P, T), has a map: ValueError for others, and for a model in
    training, whose dropout would show.
    """
    if not -len(model.blocks) <= layer < len(model.blocks):
        raise ValueError(f"layer={layer} is not there: the model has {len(model.blocks)}")
    if model.training:
        raise ValueError("model is in training, where dropout acts; call model.eval() first")
    mixer = model.blocks[layer].mixer
    attention_weights = getattr(mixer, "attention_weights", None)
    if attention_weights is None:
        known = ", ".join(name for name, kind in MIXERS.items() if hasattr(kind, "attention_weights"))
        raise ValueError(f"layer={layer} is a {type(mixer).__name__}, which has no attention map; these have: {known}")
    at = checked_arguments(tokens, None, ModelState, at, None, None)
    weights: Float[Tensor, "B H P T"] = attention_weights(_input_of(mixer, model, tokens), at)
    return weights.mean(dim=1)


def _input_of(mixer: Mixer, model: LanguageModel, tokens: Tensor) -> Float[Tensor, "B T M"]:
    """What the mixer is given in a pass over the tokens, of which only the first one's logits are computed."""
    seen: list[Tensor] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0])

    with mixer.register_forward_pre_hook(note):
        model(tokens, at=torch.zeros(tokens.shape[0], 1, dtype=torch.int64, device=tokens.device))
    return seen[0]
