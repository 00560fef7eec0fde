"""How sequences are mixed: kernel attention over sequences and token by token, with its backends and its state."""

from rebased.ops.attention import BACKENDS, attention_matrix, kernel_attention
from rebased.ops.state import KernelState, initial_state
from rebased.ops.step import kernel_attention_step

__all__ = [
    "BACKENDS",
    "KernelState",
    "attention_matrix",
    "initial_state",
    "kernel_attention",
    "kernel_attention_step",
]
