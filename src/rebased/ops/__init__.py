"""How sequences are mixed: kernel attention over sequences and token by token, and what goes with it."""

from rebased.ops.attention import BACKENDS, attention_matrix, kernel_attention
from rebased.ops.norm import norm_affine
from rebased.ops.state import KernelState, initial_state
from rebased.ops.step import kernel_attention_step

__all__ = [
    "BACKENDS",
    "KernelState",
    "attention_matrix",
    "initial_state",
    "kernel_attention",
    "kernel_attention_step",
    "norm_affine",
]
