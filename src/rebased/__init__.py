"""Kernel attention that really is linear: ReBased, Based and their relatives, as operators and as layers."""

from rebased.kernels import BASED, REBASED
from rebased.layers import H3, RWKV, Attention, Based, Hyena, KernelAttention, Mamba, ReBased, ShortConv
from rebased.ops import KernelState, attention_matrix, initial_state, kernel_attention, kernel_attention_step

__all__ = [
    "BASED",
    "H3",
    "REBASED",
    "RWKV",
    "Attention",
    "Based",
    "Hyena",
    "KernelAttention",
    "KernelState",
    "Mamba",
    "ReBased",
    "ShortConv",
    "attention_matrix",
    "initial_state",
    "kernel_attention",
    "kernel_attention_step",
]
__version__ = "0.1.0"
