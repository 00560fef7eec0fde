"""Causal convolution with filters as long as the sequence, by FFT."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.fft import irfft, rfft

from rebased.ops.dtypes import compute_dtype
from rebased.ops.opaque import define_operator

__all__ = ["long_conv"]


def long_conv(
    inputs: Float[Tensor, "B S W"], filters: Float[Tensor, "L W"], num_outputs: int | None = None
) -> Float[Tensor, "B T W"]:
    """``y_t = Σ_j filters_j · inputs_{t-j}`` in each channel, at the last ``num_outputs`` positions, or at all.

    Taps beyond the first input are ignored. The result is float32, or float64 for float64 inputs, as are the sums.
    An operator of its own, for compilers do not generate code for complex numbers and would warn.
    """
    S = inputs.shape[1]
    dtype = compute_dtype(inputs)
    if inputs.numel() == 0:
        return inputs[:, : S if num_outputs is None else num_outputs].to(dtype)
    outputs: Tensor = _long_conv(inputs.to(dtype), filters[:S].to(dtype), S if num_outputs is None else num_outputs)
    return outputs


def _fft_length(num_inputs: int, num_taps: int, num_outputs: int) -> int:
    """The shortest fast length whose wrap-around misses the last outputs: linear convolution would take S + L - 1."""
    needed = max(num_inputs, num_taps + num_outputs - 1)
    unit = 1
    while 8 * unit < needed:
        unit *= 2
    return next(unit * factor for factor in (1, 2, 3, 4, 5, 6, 8) if unit * factor >= needed)


# ---- On real tensors ----


def _forward(inputs: Tensor, filters: Tensor, num_outputs: int) -> Tensor:
    S, L, T = inputs.shape[1], filters.shape[0], num_outputs
    if T == 1:  # a step of a stream
        reach = min(S, L)
        return torch.einsum("bsw,sw->bw", inputs[:, S - reach :], filters[:reach].flip(0))[:, None]
    N = _fft_length(S, L, T)
    spectrum = rfft(inputs, n=N, dim=1) * rfft(filters, n=N, dim=0)
    return irfft(spectrum, n=N, dim=1)[:, S - T : S].contiguous()


def _backward(grad: Tensor, inputs: Tensor, filters: Tensor) -> tuple[Tensor, Tensor]:
    """Correlations with the other factor; the same length of FFT keeps both from wrapping around."""
    S, L, T = inputs.shape[1], filters.shape[0], grad.shape[1]
    N = _fft_length(S, L, T)
    placed = torch.nn.functional.pad(grad, (0, 0, S - T, 0))
    spectrum = rfft(placed, n=N, dim=1)
    dinputs = irfft(spectrum * rfft(filters, n=N, dim=0).conj(), n=N, dim=1)[:, :S].contiguous()
    correlation = (spectrum * rfft(inputs, n=N, dim=1).conj()).sum(dim=0)
    return dinputs, irfft(correlation, n=N, dim=0)[:L].contiguous()


# ---- Under vmap: mapped calls are more channels ----


def _join(x: Tensor, dim: int | None, size: int) -> Tensor:
    x = x[..., None, :].expand(*x.shape[:-1], size, -1) if dim is None else x.movedim(dim, -2)
    return x.flatten(-2)


def _split(x: Tensor, size: int) -> Tensor:
    # Contiguous, for torch 2.13 compiles the strides of other layouts for one number of replicas only.
    return x.unflatten(-1, (size, -1)).movedim(-2, 0).contiguous()


def _forward_vmap(info: Any, in_dims: Any, inputs: Tensor, filters: Tensor, num_outputs: int) -> tuple[Tensor, int]:
    size = info.batch_size
    outputs = _long_conv(_join(inputs, in_dims[0], size), _join(filters, in_dims[1], size), num_outputs)
    return _split(outputs, size), 0


def _backward_vmap(
    info: Any, in_dims: Any, grad: Tensor, inputs: Tensor, filters: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    size = info.batch_size
    joined = (_join(x, dim, size) for x, dim in zip((grad, inputs, filters), in_dims, strict=True))
    dinputs, dfilters = _long_conv_backward(*joined)
    return (_split(dinputs, size), _split(dfilters, size)), (0, 0)


# ---- The operator ----


def _setup_context(ctx: Any, arguments: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(*arguments[:2])


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    dinputs, dfilters = _long_conv_backward(grad, *ctx.saved_tensors)
    return dinputs, dfilters, None


_long_conv_backward = define_operator(
    "long_conv_backward(Tensor grad, Tensor inputs, Tensor filters) -> (Tensor, Tensor)",
    implementation=_backward,
    fake=lambda grad, inputs, filters: (inputs.new_empty(inputs.shape), filters.new_empty(filters.shape)),
    vmap=_backward_vmap,
)

_long_conv = define_operator(
    "long_conv(Tensor inputs, Tensor filters, SymInt num_outputs) -> Tensor",
    implementation=_forward,
    fake=lambda inputs, filters, num_outputs: inputs.new_empty(inputs.shape[0], num_outputs, inputs.shape[2]),
    vmap=_forward_vmap,
    setup_context=_setup_context,
    backward=_differentiate,
)
