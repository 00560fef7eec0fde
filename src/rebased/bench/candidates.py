"""The calls a bench compares: `kernel_attention` by backend, and softmax attention."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rebased.bench.config import OpsBenchConfig
from rebased.kernels import REBASED
from rebased.ops import kernel_attention

__all__ = ["Call", "build_call", "with_gradients"]

Call = Callable[[], object]


def build_call(candidate: str, length: int, config: OpsBenchConfig) -> Call:
    """A call of ``candidate`` ("sdpa" or a backend's name) on fixed random inputs of ``length`` tokens.

    Each gets its inputs in the layout it likes best: (B, T, H, ·) for `kernel_attention`, (B, H, T, ·) for SDPA. With
    ``config.backward`` the call returns the gradients of q, k and v, otherwise the output.
    """
    generator = torch.Generator(config.torch_device).manual_seed(config.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=config.torch_device, dtype=config.torch_dtype)

    B, T, H, F, D = config.batch_size, length, config.num_heads, config.feature_dim, config.head_dim
    if candidate == "sdpa":
        q, k, v = normal(B, H, T, D), normal(B, H, T, D), normal(B, H, T, D)

        def forward() -> Tensor:
            return scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        q, k, v = normal(B, T, H, F), normal(B, T, H, F), normal(B, T, H, D)

        def forward() -> Tensor:
            return kernel_attention(q, k, v, REBASED, backend=candidate)

    if not config.backward:
        return forward
    return with_gradients(forward, (q, k, v), torch.ones_like(v))


def with_gradients(
    forward: Callable[[], Tensor], inputs: Sequence[Tensor], grad_output: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    """A call that runs ``forward`` and returns the gradients of ``inputs``, which now require them."""
    for tensor in inputs:
        tensor.requires_grad_()
    return lambda: torch.autograd.grad(forward(), inputs, grad_output)
