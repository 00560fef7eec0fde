"""Sequence mixers: one interface, `Mixer`, and the families of the paper."""

from rebased.layers.attention import Attention
from rebased.layers.based import Based
from rebased.layers.h3 import H3
from rebased.layers.hyena import Hyena
from rebased.layers.kernel_attention import KernelAttention
from rebased.layers.kernel_names import KERNELS
from rebased.layers.mamba import Mamba
from rebased.layers.mixer import Mixer
from rebased.layers.previous_token import PreviousToken
from rebased.layers.rebased import ReBased
from rebased.layers.rows import pick
from rebased.layers.rwkv import RWKV
from rebased.layers.short_conv import ShortConv
from rebased.layers.states import MixerState

__all__ = [
    "H3",
    "KERNELS",
    "MIXERS",
    "RWKV",
    "Attention",
    "Based",
    "Hyena",
    "KernelAttention",
    "Mamba",
    "Mixer",
    "MixerState",
    "PreviousToken",
    "ReBased",
    "ShortConv",
    "pick",
]

MIXERS: dict[str, type[Mixer]] = {
    "rebased": ReBased,
    "based": Based,
    "kernel_attention": KernelAttention,
    "attention": Attention,
    "short_conv": ShortConv,
    "previous_token": PreviousToken,
    "hyena": Hyena,
    "h3": H3,
    "rwkv": RWKV,
    "mamba": Mamba,
}
"""Mixers by name, as configurations have them. Yours too: ``MIXERS["mine"] = MyMixer``."""
