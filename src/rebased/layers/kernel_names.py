"""Kernels by name, as configurations have them."""

from collections.abc import Callable
from typing import Any

from rebased.kernels import (
    BASED,
    DPFP,
    ELEMENTWISE_SQUARE,
    ELU_PLUS_ONE,
    REBASED,
    RELU,
    RFA,
    CosFormer,
    Kernel,
    Power,
)
from rebased.layers.checks import check_options

__all__ = ["KERNELS", "make_kernel"]


def _rfa(feature_dim: int, *, num_random: int = 64, seed: int = 0, sigma: float = 1.0) -> Kernel:
    return RFA(feature_dim, num_random, seed=seed, sigma=sigma)


KERNELS: dict[str, Callable[..., Kernel]] = {
    "rebased": lambda feature_dim: REBASED,
    "based": lambda feature_dim: BASED,
    "elu+1": lambda feature_dim: ELU_PLUS_ONE,
    "relu": lambda feature_dim: RELU,
    "elementwise_square": lambda feature_dim: ELEMENTWISE_SQUARE,
    "cosformer": lambda feature_dim, *, max_len: CosFormer(max_len),
    "dpfp": lambda feature_dim, *, nu=1: DPFP(nu),
    "rfa": _rfa,
    "power": lambda feature_dim, *, p: Power(p),
}
"""What a name stands for, given ``feature_dim`` and the options after it."""


def make_kernel(name: str, feature_dim: int, options: dict[str, Any]) -> Kernel:
    """ValueError, listing what there is, for an unknown name and for options that do not belong to it."""
    if name not in KERNELS:
        raise ValueError(f"kernel={name!r} is unknown; there are {', '.join(map(repr, KERNELS))}")
    check_options("kernel_options", options, f"kernel={name!r}", KERNELS[name])
    return KERNELS[name](feature_dim, **options)
