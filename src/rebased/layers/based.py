"""Based: attention with the second-order Taylor polynomial of exp."""

from rebased.kernels import BASED
from rebased.layers.kernel_attention import KernelAttention

__all__ = ["Based"]


class Based(KernelAttention):
    """`KernelAttention` with 1 + s + s²/2 (Arora et al. 2024)."""

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 12,
        num_key_heads: int | None = None,
        feature_dim: int = 16,
        head_dim: int | None = None,
        eps: float = 1e-12,
        backend: str = "auto",
    ) -> None:
        super().__init__(
            d_model,
            kernel=BASED,
            num_heads=num_heads,
            num_key_heads=num_key_heads,
            feature_dim=feature_dim,
            head_dim=head_dim,
            eps=eps,
            backend=backend,
        )
