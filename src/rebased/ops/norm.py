"""Norm, scale and shift of the last axis in one operation: what ReBased does to queries and keys.

``rebased::norm_affine`` takes x (..., W). A weight or bias (W,) serves every row; one of shape (G, W) has an entry for
each index of x's first axis, which is how stacked replicas run as one call. Two given parameters are of the same kind.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rebased.ops.backends import TORCH_OR_TRITON, check_name, require_triton, runs_on_triton
from rebased.ops.checks import check_dtype, check_eps, check_switches
from rebased.ops.dtypes import compute_dtype
from rebased.ops.opaque import define_operator
from rebased.ops.replicas import join_replicas

__all__ = ["norm_affine"]

MAX_TRITON_WIDTH = 16384
"""A Triton program holds whole rows; "auto" leaves wider ones to torch."""


def norm_affine(
    x: Float[Tensor, "*B W"],
    weight: Float[Tensor, " W"] | None = None,
    bias: Float[Tensor, " W"] | None = None,
    *,
    eps: float = 1e-5,
    normalize: bool = True,
    backend: str = "auto",
) -> Float[Tensor, "*B W"]:
    """``weight · (x - mean(x)) / sqrt(var(x) + eps) + bias`` over the last axis, with the biased variance.

    A missing weight is 1, a missing bias 0; without ``normalize`` the result is ``weight · x + bias``. With x
    (B, T, H·F) the norm is over joined heads, with (B, T, H, F) it is per head.

    Everything is computed in float32, for float64 x in float64, and comes back in x's dtype; weight and bias may have
    another one. Autocast changes nothing. Gradients of weight and bias are summed in the same precision, in an order
    that does not vary from run to run.

    Backends: "torch" works everywhere; "triton" is one kernel in each direction, for a GPU, up to a width of
    `MAX_TRITON_WIDTH` and not in float64; "auto" takes the latter where it can. Raises ValueError (TypeError for a
    wrong type) that names the argument.
    """
    _check_x(x)
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            _check_parameter(name, parameter, x)
    check_switches(normalize=normalize)
    check_eps(eps)
    _check_backend(backend, x)
    out: Tensor = _norm_affine(x, weight, bias, eps, normalize, backend)[0]
    return out


# ---- Checks ----


def _check_x(x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"x is a {type(x).__name__}; it must be a tensor")
    check_dtype("x", x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must have a last axis that is not empty")


def _check_parameter(name: str, parameter: Tensor, x: Tensor) -> None:
    if not isinstance(parameter, Tensor):
        raise TypeError(f"{name} is a {type(parameter).__name__}; it must be a tensor or None")
    check_dtype(name, parameter)
    if tuple(parameter.shape) != (x.shape[-1],):
        raise ValueError(f"{name} has shape {tuple(parameter.shape)}; it must be ({x.shape[-1]},), as x's last axis")
    if parameter.device != x.device:
        raise ValueError(f"{name} is on {parameter.device}, x on {x.device}; all must be on one device")


def _check_backend(backend: str, x: Tensor) -> None:
    """What can be told from a traced tensor; `runs_on_triton` checks the rest."""
    check_name(backend, TORCH_OR_TRITON)
    if backend == "triton":
        require_triton(_no_triton_for(x), instead="torch")


def _no_triton_for(x: Tensor) -> str | None:
    if x.dtype == torch.float64:
        return "computes in float32 and less, and x has dtype float64"
    if x.shape[-1] > MAX_TRITON_WIDTH:
        return f"takes a last axis up to {MAX_TRITON_WIDTH}, x has {x.shape[-1]}"
    return None


# ---- On real tensors ----


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalize: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, and each row's mean and 1 / sqrt(var + eps); without a norm these have no elements."""
    grouped = _is_grouped(weight, bias)
    if _runs_on_triton(x, backend):
        from rebased.ops.triton import norm

        return norm.forward(x, weight, bias, eps, normalize, grouped=grouped)
    rows = _copied_rows(x, grouped)  # (G, N, W)
    mean, rstd = _no_statistics(x), _no_statistics(x)
    if normalize:
        mean = rows.mean(dim=-1, keepdim=True)
        rows.sub_(mean)
        rstd = rows.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        rows.mul_(rstd)
        mean, rstd = mean.reshape(x.shape[:-1]), rstd.reshape(x.shape[:-1])
    if weight is not None:
        rows.mul_(weight.to(rows.dtype)[..., None, :])
    if bias is not None:
        rows.add_(bias.to(rows.dtype)[..., None, :])
    return rows.to(x.dtype).reshape(x.shape), mean, rstd


def _backward(
    dout: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    normalize: bool,
    grouped: bool,
    weight_grad: bool,
    bias_grad: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and, stacked and in the compute dtype, of those parameters that were asked for."""
    if _runs_on_triton(x, backend):
        from rebased.ops.triton import norm

        return norm.backward(
            dout,
            x,
            mean,
            rstd,
            weight,
            normalize,
            grouped=grouped,
            weight_grad=weight_grad,
            bias_grad=bias_grad,
        )
    normalized, grad = _copied_rows(x, grouped), _copied_rows(dout, grouped)  # (G, N, W)
    if normalize:
        row_axes = (*normalized.shape[:-1], 1)
        rstd = rstd.reshape(row_axes)
        normalized.sub_(mean.reshape(row_axes)).mul_(rstd)
    sums = []
    if weight_grad:
        sums.append((grad * normalized).sum(dim=1))
    if bias_grad:
        sums.append(grad.sum(dim=1))
    dparameters = torch.stack(sums) if sums else grad.new_empty(0, grad.shape[0], grad.shape[-1])
    if weight is not None:
        grad.mul_(weight.to(grad.dtype)[..., None, :])
    if normalize:
        along_x = (grad * normalized).mean(dim=-1, keepdim=True)
        grad.sub_(grad.mean(dim=-1, keepdim=True)).sub_(normalized.mul_(along_x)).mul_(rstd)
    return grad.to(x.dtype).reshape(x.shape), dparameters if grouped else dparameters[:, 0]


def _is_grouped(*parameters: Tensor | None) -> bool:
    return any(parameter is not None and parameter.ndim == 2 for parameter in parameters)


def _copied_rows(x: Tensor, grouped: bool) -> Tensor:
    """All rows of each group in the compute dtype, (G, N, W); a copy, for what follows works in place."""
    num_groups = x.shape[0] if grouped else 1
    num_rows = math.prod(x.shape[int(grouped) : -1])
    rows = x.reshape(num_groups, num_rows, x.shape[-1])
    return rows.to(compute_dtype(x), copy=True, memory_format=torch.contiguous_format)


def _no_statistics(x: Tensor) -> Tensor:
    return x.new_empty(0, dtype=compute_dtype(x))


def _runs_on_triton(x: Tensor, backend: str) -> bool:
    return runs_on_triton(backend, "x", x, _no_triton_for(x), num_rows=x.numel() // x.shape[-1])


# ---- On fake tensors ----


def _forward_fake(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, normalize: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    if not normalize:
        return x.new_empty(x.shape), _no_statistics(x), _no_statistics(x)
    mean, rstd = (x.new_empty(x.shape[:-1], dtype=compute_dtype(x)) for _ in range(2))
    return x.new_empty(x.shape), mean, rstd


def _backward_fake(
    dout: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    normalize: bool,
    grouped: bool,
    weight_grad: bool,
    bias_grad: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    groups = x.shape[:1] if grouped else ()
    dparameters = x.new_empty(weight_grad + bias_grad, *groups, x.shape[-1], dtype=compute_dtype(x))
    return x.new_empty(x.shape), dparameters


# ---- Under vmap ----


def _forward_vmap(operator: Any, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    _, weight, bias, _, normalize, _ = inputs
    given = [(p, dim) for p, dim in ((weight, in_dims[1]), (bias, in_dims[2])) if p is not None]
    grouped = any(p.ndim - (dim is not None) == 2 for p, dim in given)
    # Parameters that all replicas share go on to serve every row, without groups.
    parameters = 0 if grouped or any(dim is not None for _, dim in given) else None
    statistics = 0 if normalize else None
    return join_replicas(
        operator,
        info,
        in_dims,
        *inputs,
        inputs=(0, parameters, parameters),
        outputs=(0, statistics, statistics),
        grouped=grouped,
    )


def _backward_vmap(operator: Any, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    *tensors, normalize, grouped, weight_grad, bias_grad, backend = inputs
    # Each replica wants its own sums, also where all have the same parameters.
    by_group = grouped or in_dims[4] is not None or weight_grad or bias_grad
    statistics = 0 if normalize else None
    return join_replicas(
        operator,
        info,
        in_dims,
        *tensors,
        *(normalize, by_group, weight_grad, bias_grad, backend),
        inputs=(0, 0, statistics, statistics, 0 if by_group else None),
        outputs=(0, 1 if by_group else None),
        grouped=grouped,
    )


# ---- Autograd ----


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, _, normalize, backend = inputs
    _, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.save_for_backward(x, mean, rstd, weight)
    ctx.dtypes = [None if parameter is None else parameter.dtype for parameter in (weight, bias)]
    ctx.settings = normalize, _is_grouped(weight, bias)
    ctx.backend = backend


def _differentiate(ctx: Any, dout: Tensor | None, *_: Any) -> Any:
    if dout is None:
        return (None,) * 6
    x, mean, rstd, weight = ctx.saved_tensors
    wanted = [dtype is not None and ctx.needs_input_grad[1 + i] for i, dtype in enumerate(ctx.dtypes)]
    dx, dparameters = _norm_affine_backward(dout, x, mean, rstd, weight, *ctx.settings, *wanted, ctx.backend)
    dweight, dbias = None, None
    if wanted[0]:
        dweight = dparameters[0].to(ctx.dtypes[0])
    if wanted[1]:
        dbias = dparameters[-1].to(ctx.dtypes[1])
    return dx, dweight, dbias, None, None, None


_norm_affine_backward = define_operator(
    "norm_affine_backward(Tensor dout, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, bool normalize, "
    "bool grouped, bool weight_grad, bool bias_grad, str backend) -> (Tensor, Tensor)",
    implementation=_backward,
    fake=_backward_fake,
    vmap=_backward_vmap,
)

_norm_affine = define_operator(
    "norm_affine(Tensor x, Tensor? weight, Tensor? bias, float eps, bool normalize, str backend) "
    "-> (Tensor, Tensor, Tensor)",
    implementation=_forward,
    fake=_forward_fake,
    vmap=_forward_vmap,
    setup_context=_setup_context,
    backward=_differentiate,
)
