"""Causal convolution with filters as long as the sequence, by FFT."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.fft import irfft, rfft
from torch.nn.functional import pad

from rebased.ops.dtypes import compute_dtype, no_autocast
from rebased.ops.opaque import define_operator
from rebased.ops.replicas import join_replicas

__all__ = ["long_conv"]


def long_conv(
    inputs: Float[Tensor, "B S W"], filters: Float[Tensor, "L W"], num_outputs: int | None = None
) -> Float[Tensor, "B T W"]:
    """``y_t = Σ_j filters_j · inputs_{t-j}`` in each channel, at the last ``num_outputs`` positions, or at all.

    Taps beyond the first input are ignored. The result is float32, or float64 for float64 inputs, as are the sums.
    """
    S = inputs.shape[1]
    T = S if num_outputs is None else num_outputs
    dtype = compute_dtype(inputs)
    if inputs.numel() == 0:
        return inputs[:, :T].to(dtype)
    inputs, filters = inputs.to(dtype), filters[:S].to(dtype)
    L = filters.shape[0]
    if T == 1:  # a step of a stream
        with no_autocast(inputs):
            return torch.einsum("bsw,sw->bw", inputs[:, S - L :], filters.flip(0))[:, None]
    N = _fft_length(S, L, T)
    # What takes time is passes over memory, and along an axis other than the last, torch copies before and after a
    # transform. So channels come first on the way. A compiler makes these copies part of what is before and after.
    around = _circular_conv(
        pad(inputs.mT, (0, N - S)).contiguous()[None], pad(filters.mT, (0, N - L)).contiguous()[None]
    )
    return around[0, ..., S - T : S].mT.contiguous()


def _fft_length(num_inputs: int, num_taps: int, num_outputs: int) -> int:
    """The shortest fast length whose wrap-around misses the last outputs: linear convolution would take S + L - 1."""
    needed = max(num_inputs, num_taps + num_outputs - 1)
    unit = 1
    while 8 * unit < needed:
        unit *= 2
    return next(unit * factor for factor in (1, 2, 3, 4, 5, 6, 8) if unit * factor >= needed)


# ---- Circular convolution of inputs (G, B, W, N) with filters (G, W, N) ----
#
# Operators of their own, for compilers do not generate code for complex numbers and would warn. Replicas run as groups
# of one call.


def _forward(inputs: Tensor, filters: Tensor) -> Tensor:
    if inputs.numel() == 0:  # no replicas
        return inputs.new_empty(inputs.shape)
    # Strides as promised to compiled code, which are not those of the transform where inputs are expanded.
    return irfft(rfft(inputs).mul_(_filter_spectra(filters)), n=inputs.shape[-1], norm="forward").contiguous()


def _backward(grad: Tensor, inputs: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
    """Correlations with the other factor."""
    if inputs.numel() == 0:
        return inputs.new_empty(inputs.shape), filters.new_zeros(filters.shape)
    N = inputs.shape[-1]
    spectra = rfft(grad)
    # Conjugated at once: `conj()` leaves that to later operations, which do not do it where a compiled graph holds the
    # gradients too, as torch.func's (torch 2.11 and 2.13: wrong numbers in silence). And in place, to save memory.
    correlations = rfft(inputs).conj_physical_().mul_(spectra).sum(dim=1)
    products = spectra.mul_(_filter_spectra(filters).conj_physical_())
    return irfft(products, n=N, norm="forward").contiguous(), irfft(correlations, n=N).contiguous()


def _filter_spectra(filters: Tensor) -> Tensor:
    """(G, 1, W, F), divided by the length, which `irfft` would do to its outputs in a pass of its own."""
    return rfft(filters, norm="forward")[:, None]


def _setup_context(ctx: Any, arguments: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*arguments)


_circular_conv_backward = define_operator(
    "circular_conv_backward(Tensor grad, Tensor inputs, Tensor filters) -> (Tensor, Tensor)",
    implementation=_backward,
    fake=lambda grad, inputs, filters: (inputs.new_empty(inputs.shape), filters.new_empty(filters.shape)),
    vmap=partial(join_replicas, inputs=(0, 0, 0), outputs=(0, 0)),
)

_circular_conv = define_operator(
    "circular_conv(Tensor inputs, Tensor filters) -> Tensor",
    implementation=_forward,
    fake=lambda inputs, filters: inputs.new_empty(inputs.shape),
    vmap=partial(join_replicas, inputs=(0, 0), outputs=0),
    setup_context=_setup_context,
    backward=lambda ctx, grad: _circular_conv_backward(grad, *ctx.saved_tensors),
)
