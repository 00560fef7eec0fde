"""Cross entropy of a linear head, without the logits: a vocabulary of thousands makes them far larger than all else.

``rebased::linear_cross_entropy`` has groups, each with a table of its own: x (G, N, W), weight (G, V, W), labels
(G, N). Stacked replicas run as groups of one call.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rebased.ops.backends import TORCH_OR_TRITON, check_name, require_triton, runs_on_triton
from rebased.ops.checks import check_floats, check_like
from rebased.ops.dtypes import autocast_inputs, compute_dtype
from rebased.ops.opaque import define_operator
from rebased.ops.pieces import pieces
from rebased.ops.replicas import join_replicas

__all__ = ["linear_cross_entropy"]

PIECE_NUMBERS = 2**24
"""How many logits the torch backend has at a time, unless one row has more."""


def linear_cross_entropy(
    x: Float[Tensor, "N W"], weight: Float[Tensor, "V W"], labels: Int[Tensor, " N"], *, backend: str = "auto"
) -> Float[Tensor, " N"]:
    """``-log softmax(x @ weightᵀ)[labels]`` of each row, in float32, for float64 inputs in float64.

    Labels are int64 in 0 .. V - 1, which is for the caller to check. As in a matrix product, autocast casts x and
    weight, and outside it they have one dtype. Logits are float32 whatever the inputs; the backward pass computes them
    again, and what it multiplies with, p or at the label p - 1, the Triton kernels round to the inputs' dtype. Results
    do not vary from run to run.

    Backends: "torch" works everywhere, with `PIECE_NUMBERS` logits at a time; "triton", for a GPU and not in float64,
    has only tiles of them, or for wide rows, as those of language models, some of torch's products at a time; "auto"
    takes the latter where it can. Raises ValueError (TypeError for a wrong type) that names the argument.
    """
    check_floats("x", x, "N W")
    check_floats("weight", weight, "V W")
    check_like("weight", weight, (weight.shape[0], x.shape[1]), "x", x)
    if weight.shape[0] == 0:
        raise ValueError(f"weight has shape {tuple(weight.shape)}; there must be at least one class")
    _check_labels(labels, x)
    check_name(backend, TORCH_OR_TRITON)
    x, weight = autocast_inputs(x, weight)
    if weight.dtype != x.dtype:
        raise ValueError(f"weight has dtype {weight.dtype}, x has {x.dtype}; outside autocast they must agree")
    if backend == "triton":
        require_triton(_no_triton_for(x), instead="torch")
    losses: Tensor = _linear_cross_entropy(x[None], weight[None], labels[None], backend)[0]
    return losses[0]


# ---- Checks ----


def _check_labels(labels: Tensor, x: Tensor) -> None:
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels is a {type(labels).__name__}; it must be a tensor")
    if labels.dtype != torch.int64:
        raise ValueError(f"labels has dtype {labels.dtype}; it must be int64")
    check_like("labels", labels, x.shape[:1], "x", x)


def _no_triton_for(x: Tensor) -> str | None:
    """What can be told from a traced tensor; `runs_on_triton` checks the rest."""
    if x.dtype == torch.float64:
        return "computes in float32 and less, and x has dtype float64"
    return None


# ---- On real tensors ----


def _forward(x: Tensor, weight: Tensor, labels: Tensor, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    """Losses; each row's greatest logit; log Σ exp(logit - greatest)."""
    if _runs_on_triton(x, backend):
        from rebased.ops.triton import cross_entropy

        return cross_entropy.forward(x, weight, labels)
    losses, peaks, log_sums = _forward_fake(x, weight, labels, backend)
    weight = weight.to(compute_dtype(x))
    for rows, groups in pieces(x.shape[1], x.shape[0], weight.shape[1], PIECE_NUMBERS):
        logits = _logits(x[groups, rows], weight[groups])
        chosen = logits.gather(-1, labels[groups, rows, None])[..., 0]
        peak = logits.amax(dim=-1)
        log_sum = logits.sub_(peak[..., None]).exp_().sum(dim=-1).log_()
        losses[groups, rows] = peak - chosen + log_sum
        peaks[groups, rows], log_sums[groups, rows] = peak, log_sum
    return losses, peaks, log_sums


def _backward(
    dlosses: Tensor,
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    peaks: Tensor,
    log_sums: Tensor,
    x_grad: bool,
    weight_grad: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Gradients of x and weight; one that is not asked for has no elements."""
    if _runs_on_triton(x, backend):
        from rebased.ops.triton import cross_entropy

        return cross_entropy.backward(
            dlosses, x, weight, labels, peaks, log_sums, x_grad=x_grad, weight_grad=weight_grad
        )
    table = weight.to(compute_dtype(x))
    dx = x.new_empty(x.shape if x_grad else 0)
    dtable = table.new_zeros(table.shape if weight_grad else 0)
    for rows, groups in pieces(x.shape[1], x.shape[0], weight.shape[1], PIECE_NUMBERS):
        dlogits = _logits(x[groups, rows], table[groups]).sub_(peaks[groups, rows, None])
        dlogits.sub_(log_sums[groups, rows, None]).exp_()
        places = labels[groups, rows, None]
        dlogits.scatter_(-1, places, dlogits.gather(-1, places) - 1).mul_(dlosses[groups, rows, None])
        if x_grad:
            dx[groups, rows] = torch.bmm(dlogits, table[groups]).to(x.dtype)
        if weight_grad:
            dtable[groups].baddbmm_(dlogits.mT, x[groups, rows].to(table.dtype))
    return dx, dtable.to(weight.dtype)


def _logits(x: Tensor, weight: Tensor) -> Tensor:
    return torch.bmm(x.to(weight.dtype), weight.mT)


def _runs_on_triton(x: Tensor, backend: str) -> bool:
    return runs_on_triton(backend, "x", x, _no_triton_for(x), num_rows=x.shape[1])


# ---- On fake tensors ----


def _forward_fake(x: Tensor, weight: Tensor, labels: Tensor, backend: str) -> tuple[Tensor, Tensor, Tensor]:
    losses, peaks, log_sums = (x.new_empty(x.shape[:2], dtype=compute_dtype(x)) for _ in range(3))
    return losses, peaks, log_sums


def _backward_fake(
    dlosses: Tensor,
    x: Tensor,
    weight: Tensor,
    labels: Tensor,
    peaks: Tensor,
    log_sums: Tensor,
    x_grad: bool,
    weight_grad: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape if x_grad else 0), weight.new_empty(weight.shape if weight_grad else 0)


# ---- Under vmap ----


def _forward_vmap(operator: Any, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    # One table: all rows are one call's, and its gradient is one sum.
    rows, tables = (1, None) if in_dims[1] is None else (0, 0)
    return join_replicas(operator, info, in_dims, *inputs, inputs=(rows, tables, rows), outputs=(rows,) * 3)


def _backward_vmap(operator: Any, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    *_, x_grad, weight_grad, _ = inputs
    outputs = 0 if x_grad else None, 0 if weight_grad else None
    return join_replicas(operator, info, in_dims, *inputs, inputs=(0,) * 6, outputs=outputs)


# ---- Autograd ----


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    *tensors, backend = inputs
    _, peaks, log_sums = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(peaks, log_sums)
    ctx.save_for_backward(*tensors, peaks, log_sums)
    ctx.backend = backend


def _differentiate(ctx: Any, dlosses: Tensor | None, *_: Any) -> Any:
    if dlosses is None:
        return (None,) * 4
    wanted = ctx.needs_input_grad[:2]
    grads = _linear_cross_entropy_backward(dlosses, *ctx.saved_tensors, *wanted, ctx.backend)
    dx, dweight = (grad if is_wanted else None for grad, is_wanted in zip(grads, wanted, strict=True))
    return dx, dweight, None, None


_linear_cross_entropy_backward = define_operator(
    "linear_cross_entropy_backward(Tensor dlosses, Tensor x, Tensor weight, Tensor labels, Tensor peaks, "
    "Tensor log_sums, bool x_grad, bool weight_grad, str backend) -> (Tensor, Tensor)",
    implementation=_backward,
    fake=_backward_fake,
    vmap=_backward_vmap,
)

_linear_cross_entropy = define_operator(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor labels, str backend) -> (Tensor, Tensor, Tensor)",
    implementation=_forward,
    fake=_forward_fake,
    vmap=_forward_vmap,
    setup_context=_setup_context,
    backward=_differentiate,
)
