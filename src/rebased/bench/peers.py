"""The public kernels that ours stand beside: flash-linear-attention's, where it is installed."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from torch import Tensor

from rebased.kernels import BASED, REBASED, Kernel

__all__ = ["PEERS", "Peer", "PeerUnavailableError", "load_peer"]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One function of flash-linear-attention, called as ``f(q, k, v)`` with time before heads.

    All three scale by 1/√F as we do, and add 1e-5 or 1e-6 to the normaliser. They transpose to heads before time and
    copy what is not contiguous then.
    """

    module: str
    kernel: Kernel
    """The similarity it computes."""


PEERS = {
    "parallel_rebased": Peer(module="fla.ops.rebased", kernel=REBASED),  # quadratic, F up to 128
    "parallel_based": Peer(module="fla.ops.based", kernel=BASED),  # quadratic, F up to 128
    "fused_chunk_based": Peer(module="fla.ops.based", kernel=BASED),  # linear, F up to 16
}


class PeerUnavailableError(RuntimeError):
    """A peer cannot be called here; the message says why."""


def load_peer(name: str, *, device: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The function called ``name`` in `PEERS`. Importing it takes seconds and may need a driver, so only now."""
    if device != "cuda":
        raise PeerUnavailableError("needs a CUDA device")
    if find_spec("fla") is None:
        raise PeerUnavailableError("flash-linear-attention is not installed")
    try:
        module = importlib.import_module(PEERS[name].module)
    except Exception as error:  # another package's import may fail in any way; its cells then say how
        raise PeerUnavailableError(f"flash-linear-attention cannot be imported: {error}") from error
    function: Callable[[Tensor, Tensor, Tensor], Tensor] = getattr(module, name)
    return function
