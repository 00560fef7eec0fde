"""Kernel attention that really is linear: ReBased, Based and their relatives."""

from rebased.kernels import BASED, REBASED
from rebased.ops import KernelState, attention_matrix, initial_state, kernel_attention, kernel_attention_step

__all__ = [
    "BASED",
    "REBASED",
    "KernelState",
    "attention_matrix",
    "initial_state",
    "kernel_attention",
    "kernel_attention_step",
]
__version__ = "0.1.0"
