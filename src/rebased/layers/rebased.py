"""ReBased: attention with the square of s, on queries and keys that are normalised, scaled and shifted first."""

import torch
from torch import Tensor, nn

from rebased.checks import check_choice
from rebased.kernels import REBASED
from rebased.layers.kernel_attention import KernelAttention
from rebased.ops import norm_affine
from rebased.ops.checks import check_switches

__all__ = ["NORM_SCOPES", "ReBased"]

NORM_SCOPES = ("joined", "head")
"""What a norm is over: all heads joined, or each head alone."""
NORM_EPS = 1e-5


class ReBased(KernelAttention):
    """`KernelAttention` with s² on ``γ·norm(x) + β`` of queries and keys (equations 5 to 7 of the paper).

    ``norm``, ``gamma`` and ``beta`` switch its parts; without any it is the paper's x² ablation. With
    ``norm_scope="joined"`` norm and affine act on all heads at once and queries and keys have parameters of their own,
    as published; with "head" they act on each head, and one γ and one β (feature_dim) serve all heads, queries and
    keys, as in flash-linear-attention.
    """

    def __init__(
        self,
        d_model: int,
        *,
        norm: bool = True,
        gamma: bool = True,
        beta: bool = True,
        norm_scope: str = "joined",
        num_heads: int = 12,
        num_key_heads: int | None = None,
        feature_dim: int = 16,
        head_dim: int | None = None,
        eps: float = 1e-12,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            d_model,
            kernel=REBASED,
            num_heads=num_heads,
            num_key_heads=num_key_heads,
            feature_dim=feature_dim,
            head_dim=head_dim,
            eps=eps,
            backend=backend,
        )
        check_switches(norm=norm, gamma=gamma, beta=beta)
        check_choice("norm_scope", norm_scope, NORM_SCOPES)
        self.norm, self.norm_scope = norm, norm_scope
        widths = [self.num_heads * feature_dim, self.num_key_heads * feature_dim]
        if norm_scope == "head":
            widths = [feature_dim]
        self.gammas = nn.ParameterList(torch.empty(width) for width in widths) if gamma else None
        self.betas = nn.ParameterList(torch.empty(width) for width in widths) if beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for weight in self.gammas or ():
            nn.init.ones_(weight)
        for bias in self.betas or ():
            nn.init.zeros_(bias)

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if not self.norm and self.gammas is None and self.betas is None:
            return q, k
        return self._transform(q, 0), self._transform(k, -1)

    def _transform(self, x: Tensor, index: int) -> Tensor:
        """Queries have index 0, keys -1: the same one where parameters are shared."""
        shape = x.shape
        if self.norm_scope == "head":
            x = x.unflatten(-1, (-1, self.feature_dim))
        gamma = None if self.gammas is None else self.gammas[index]
        beta = None if self.betas is None else self.betas[index]
        return norm_affine(x, gamma, beta, eps=NORM_EPS, normalize=self.norm).reshape(shape)
