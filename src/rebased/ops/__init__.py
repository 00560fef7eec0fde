"""How sequences are mixed: kernel attention and the scans, over sequences and token by token."""

from rebased.ops.attention import BACKENDS, attention_matrix, kernel_attention
from rebased.ops.cross_entropy import linear_cross_entropy
from rebased.ops.norm import norm_affine
from rebased.ops.selective_scan import selective_scan, selective_scan_step
from rebased.ops.state import KernelState, initial_state
from rebased.ops.step import kernel_attention_step
from rebased.ops.wkv import WKVState, initial_wkv_state, wkv, wkv_step

__all__ = [
    "BACKENDS",
    "KernelState",
    "WKVState",
    "attention_matrix",
    "initial_state",
    "initial_wkv_state",
    "kernel_attention",
    "kernel_attention_step",
    "linear_cross_entropy",
    "norm_affine",
    "selective_scan",
    "selective_scan_step",
    "wkv",
    "wkv_step",
]
