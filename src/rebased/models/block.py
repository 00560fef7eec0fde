"""One layer of a model: a mixer on the residual stream, and what follows it."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rebased.layers import MIXERS, Mixer
from rebased.layers.dropout import Dropout
from rebased.layers.rows import pick
from rebased.models.config import LayerConfig, ModelConfig
from rebased.ops.layer_norm import LayerNorm

__all__ = ["Block", "make_norm"]

NORM_EPS = 1e-5


class MLP(nn.Module):
    """``W₂ gelu(W₁ x + b₁) + b₂``."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, width)
        self.down = nn.Linear(width, d_model)

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T M"]:
        return self.down(torch.nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    """``x += mixer(norm(x))``, then ``x += after(norm(x))``; with "nothing" after it, the first only."""

    def __init__(self, config: ModelConfig, layer: LayerConfig) -> None:
        super().__init__()
        self.norm = make_norm(layer.norm, config.d_model)
        self.mixer: Mixer = MIXERS[layer.mixer](config.d_model, **layer.options)
        self.dropout = Dropout(config.residual_dropout)
        self.after_norm: nn.Module | None = None
        self.after: nn.Module = nn.Identity()
        if layer.after != "nothing":
            self.after_norm = make_norm(layer.norm, config.d_model)
            self.after_dropout = Dropout(config.residual_dropout)
        if layer.after == "mlp":
            self.after = MLP(config.d_model, config.mlp_factor * config.d_model)

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        state: Any,
        *,
        at: Tensor | None,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Float[Tensor, "B P M"], Any]:
        mixed = self.mixer(self.norm(x), state=state, at=at, key_mask=key_mask, cu_seqlens=cu_seqlens)
        if state is not None:
            mixed, state = mixed
        x = pick(x, at) + self.dropout(mixed)
        if self.after_norm is not None:
            x = x + self.after_dropout(self.after(self.after_norm(x)))
        return x, state

    def init_weights(self, std: float, num_layers: int) -> None:
        self.mixer.init_weights(std, num_layers)
        if isinstance(self.after, MLP):
            for linear in (self.after.up, self.after.down):
                nn.init.normal_(linear.weight, std=std)
                nn.init.zeros_(linear.bias)


def make_norm(name: str, d_model: int) -> nn.Module:
    return LayerNorm(d_model, eps=NORM_EPS) if name == "layer" else nn.RMSNorm(d_model, eps=NORM_EPS)
