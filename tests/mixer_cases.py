"""Small mixers of every family, and what tests do with them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rebased.layers import MIXERS, Mixer

D_MODEL = 24
MAX_LEN = 40

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "rebased": ("rebased", {"num_heads": 3, "feature_dim": 5}),
    "rebased per head": ("rebased", {"num_heads": 4, "num_key_heads": 2, "feature_dim": 4, "norm_scope": "head"}),
    "x2": ("rebased", {"num_heads": 3, "feature_dim": 5, "norm": False, "gamma": False, "beta": False}),
    "based": ("based", {"num_heads": 3, "feature_dim": 5}),
    "linear transformer": ("kernel_attention", {"num_heads": 3, "feature_dim": 5}),
    "cosformer": ("kernel_attention", {"kernel": "cosformer", "kernel_options": {"max_len": MAX_LEN}, "num_heads": 2}),
    "learned polynomial": (
        "kernel_attention",
        {"kernel": "based", "learn_coefficients": True, "num_heads": 3, "feature_dim": 5},
    ),
    "attention": ("attention", {"num_heads": 3}),
    "rotary window attention": ("attention", {"num_heads": 4, "num_key_heads": 2, "window": 5, "rotary": True}),
    "short_conv": ("short_conv", {}),
    "previous_token": ("previous_token", {}),
    "hyena": ("hyena", {"seq_len": MAX_LEN}),
    "h3": ("h3", {"state_dim": 6}),
    "h3 with heads": ("h3", {"state_dim": 6, "head_dim": 3}),
    "rwkv": ("rwkv", {"layer": 1}),
    "mamba": ("mamba", {}),
}


def build(variant: str, dtype: torch.dtype = torch.float64) -> Mixer:
    torch.manual_seed(0)
    name, options = VARIANTS[variant]
    return MIXERS[name](D_MODEL, **options).to(dtype).eval()


def tokens(batch_size: int, seq_len: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch_size, seq_len, D_MODEL, dtype=torch.float64, generator=generator)


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-9) -> None:
    """Each to that part of its own largest entry; what cancels to less, to 1e-3 of it of the largest of all."""
    assert actual.keys() == expected.keys()
    floor = 1e-3 * max(x.abs().max() for x in expected.values())
    for name, x in expected.items():
        assert actual[name].shape == x.shape, name
        error, size = (actual[name] - x).abs().max(), x.abs().max()
        assert error <= tolerance * max(size, floor), f"{name}: off by {error:.1e}, size {size:.1e}"


def with_grads(mixer: Mixer, function: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, Tensor]:
    """The output of function(x) and gradients of a fixed sum of it, with respect to x and all parameters."""
    x = x.clone().requires_grad_()
    out = function(x)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(out)
    leaves = {"x": x} | dict(mixer.named_parameters())
    # A decay, say, has no part in a sequence's first token.
    grads = torch.autograd.grad((out * weights).sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
    return {"out": out.detach()} | dict(zip(leaves, grads, strict=True))


def random_tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def grads_of(mixer: Mixer, out: Tensor, x: Tensor) -> dict[str, Tensor]:
    """The output, and gradients of a fixed sum of it, with respect to x and all parameters."""
    parameters = dict(mixer.named_parameters())
    weights = random_tokens(*out.shape, seed=1)
    grads = torch.autograd.grad((out * weights).sum(), [x, *parameters.values()])
    return {"out": out.detach(), **dict(zip(["x", *parameters], grads, strict=True))}


def assert_same_norms(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Each off by 1e-9 of its own norm at most; what cancels to less, by 1e-15 of the largest norm of all."""
    assert actual.keys() == expected.keys()
    floor = 1e-6 * max(x.norm() for x in expected.values())
    for name, x in expected.items():
        assert (actual[name] - x).norm() <= 1e-9 * max(x.norm(), floor), name


def stream(mixer: Mixer, x: Tensor, lengths: list[int]) -> Tensor:
    state = mixer.init_state(x.shape[0], dtype=x.dtype)
    pieces = []
    for piece in x.split(lengths, dim=1):
        y, state = mixer(piece, state=state)
        pieces.append(y)
    return torch.cat(pieces, dim=1)
