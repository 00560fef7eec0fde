"""Rows of a table by index, with a gradient that is fast and repeatable where one index is most of them.

The gradient of `torch.nn.functional.embedding` sums the rows of an index one after another, or with atomic additions
when compiled. In recall tasks nearly every token is the filler 0: additions to its row then wait for each other, and
with atomics their order, and so the result, varies from run to run.

Only the gradient is an operator of our own: the lookup itself is torch's, so that a compiler can fuse it with what
follows. ``rebased::embedding_zeros`` gives zeros (without memory) that carry the gradient. It takes G tables (G, V, W)
and indices into each (G, N): stacked replicas run as one call.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rebased.ops.opaque import define_operator
from rebased.ops.replicas import join_replicas

__all__ = ["embedding"]

FREQUENT = 0
"""The index that most others may be equal to. Its gradient is summed in `NUM_PARTS` parts."""
NUM_PARTS = 1024


def embedding(table: Float[Tensor, "V W"], indices: Int[Tensor, "B T"]) -> Float[Tensor, "B T W"]:
    """``table[indices]``. What indices may be is for the caller to check."""
    zeros: Tensor = _embedding_zeros(table[None], indices.flatten()[None])
    rows = table.detach()[indices]
    return rows + zeros.view(rows.shape)


# ---- On real tensors ----


def _forward(tables: Tensor, indices: Tensor) -> Tensor:
    return tables.new_zeros(()).expand(*indices.shape, tables.shape[2])


def _backward(dout: Tensor, indices: Tensor, num_rows: int) -> Tensor:
    G, N, W = dout.shape
    if dout.device.type != "cuda":
        rows = _rows(indices, num_rows)
        return _sums(dout, rows, G * num_rows).view(G, num_rows, W)
    # Torch's kernel for this adds in a fixed order: after a sort, and each index's rows by one thread.
    places = torch.arange(N, device=indices.device) % NUM_PARTS
    spread = torch.where(indices == FREQUENT, num_rows + places, indices)
    rows = _rows(spread, num_rows + NUM_PARTS)
    if G * (num_rows + NUM_PARTS) < 2**31:
        rows = rows.int()  # half as many digits to sort by
    sums = _sums(dout, rows, G * (num_rows + NUM_PARTS)).view(G, -1, W)
    grads = sums[:, :num_rows].contiguous()
    grads[:, FREQUENT] = sums[:, num_rows:].sum(dim=1)
    return grads


def _sums(dout: Tensor, rows: Tensor, num_rows: int) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(dout, rows, num_rows, -1, False)


def _rows(indices: Tensor, num_rows: int) -> Tensor:
    """Indices into all tables in a row."""
    return indices + num_rows * torch.arange(indices.shape[0], device=indices.device)[:, None]


# ---- On fake tensors ----


def _backward_fake(dout: Tensor, indices: Tensor, num_rows: int) -> Tensor:
    return dout.new_empty(dout.shape[0], num_rows, dout.shape[2])


# ---- Under vmap ----


def _forward_mapped(operator: Any, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    tables, rows = (None, 1) if in_dims[0] is None else (0, 0)  # one table is given more indices
    return join_replicas(operator, info, in_dims, *inputs, inputs=(tables, rows), outputs=rows)


# ---- Differentiation ----


def _setup(ctx: Any, inputs: Any, output: Tensor) -> None:
    tables, indices = inputs
    ctx.save_for_backward(indices)
    ctx.num_rows = tables.shape[1]


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor, None]:
    (indices,) = ctx.saved_tensors
    return _embedding_grad(dout, indices, ctx.num_rows), None


_embedding_grad = define_operator(
    "embedding_grad(Tensor dout, Tensor indices, SymInt num_rows) -> Tensor",
    implementation=_backward,
    fake=_backward_fake,
    vmap=partial(join_replicas, inputs=(0, 0), outputs=0),
)
_embedding_zeros = define_operator(
    "embedding_zeros(Tensor tables, Tensor indices) -> Tensor",
    implementation=_forward,
    fake=_forward,
    vmap=_forward_mapped,
    setup_context=_setup,
    backward=_differentiate,
)
