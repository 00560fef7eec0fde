"""``rebased::attend``: polynomial kernel attention as one opaque operator, and its backward as another.

Polynomials enter as tensors and numbers (degrees, coefficients), so that the operator has a schema; a feature map's
features enter as queries and keys of the kernel s = qᵀk, degree 1. Shapes are those of `kernel_attention`, and:

* ``coefficients`` (N, H, terms) and the state's tensors have N = B, or the number of sequences if ``cu_seqlens`` packs;
* the sums it returns are over this call's keys: adding them to the state is the caller's part;
* outputs that nobody asked for have no elements.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rebased.monomials import num_monomials
from rebased.ops import chunked
from rebased.ops.opaque import define_operator
from rebased.ops.packing import Group, group_sequences
from rebased.ops.problem import Problem

_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? coefficients, Tensor? key_mask, Tensor? state_values, "
    "Tensor? state_normalizer, Tensor? cu_seqlens, Tensor? at, int[] degrees, float scale, float eps, "
    "bool normalize, bool causal, bool nonnegative"
)


class Arguments(NamedTuple):
    """The operator's inputs, in the order of its schema."""

    q: Tensor
    k: Tensor
    v: Tensor
    coefficients: Tensor | None
    key_mask: Tensor | None
    state_values: Tensor | None
    state_normalizer: Tensor | None
    cu_seqlens: Tensor | None
    at: Tensor | None
    degrees: list[int]
    scale: float
    eps: float
    normalize: bool
    causal: bool
    nonnegative: bool

    @property
    def num_sequences(self) -> int:
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.float64 if self.v.dtype == torch.float64 else torch.float32

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        E = sum(num_monomials(self.q.shape[-1], degree) for degree in self.degrees)  # of symbolic sizes as well
        return self.num_sequences, self.v.shape[2], E, self.v.shape[3]


_NUM_ARGUMENTS = len(Arguments._fields)


# ---- On real tensors ----


def _attend(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, return_sums = Arguments(*inputs[:_NUM_ARGUMENTS]), inputs[-1]
    state = _join(a.state_values, a.state_normalizer)
    if a.cu_seqlens is None:
        out, normalizer, sums = chunked.forward(_whole(a, state), return_sums=return_sums)
        return out, normalizer, *_split(a, sums)
    out = a.v.new_zeros(*a.q.shape[:3], a.v.shape[-1])
    normalizer = a.q.new_ones(a.q.shape[:3], dtype=a.compute_dtype)
    sums = None
    if return_sums:
        sums = a.v.new_zeros(*a.state_shape[:3], a.state_shape[3] + 1, dtype=a.compute_dtype)
    for group in group_sequences(a.cu_seqlens, None if a.at is None else a.at[0]):
        group_out, group_normalizer, group_sums = chunked.forward(_grouped(a, state, group), return_sums=return_sums)
        places = group.queries[group.is_query]
        out[0, places] = group_out[group.is_query]
        normalizer[0, places] = group_normalizer[group.is_query]
        if sums is not None:
            sums[group.sequences] = group_sums
    return out, normalizer, *_split(a, sums)


def _attend_backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    out, normalizer, dout, dvalues, dnormalizer, *rest, coefficients = inputs
    a = Arguments(*rest)
    state, dsums = _join(a.state_values, a.state_normalizer), _join_grads(a, dvalues, dnormalizer)
    if a.cu_seqlens is None:
        grads = chunked.backward(_whole(a, state), out, normalizer, dout, dsums, coefficients=coefficients)
        dcoefficients = grads.coefficients if grads.coefficients is not None else _nothing(a)
        return grads.q, grads.k, grads.v, dcoefficients, *_split(a, grads.state)
    dq, dk, dv = torch.zeros_like(a.q), torch.zeros_like(a.k), torch.zeros_like(a.v)
    dcoefficients = torch.zeros_like(a.coefficients) if coefficients and a.coefficients is not None else _nothing(a)
    dstate = None if state is None else torch.zeros_like(state)
    for group in group_sequences(a.cu_seqlens, None if a.at is None else a.at[0]):
        grads = chunked.backward(
            _grouped(a, state, group),
            out[0, group.queries],
            normalizer[0, group.queries],
            dout[0, group.queries].where(group.is_query[..., None, None], 0),
            None if dsums is None else dsums[group.sequences],
            coefficients=coefficients,
        )
        dq[0, group.queries[group.is_query]] = grads.q[group.is_query]
        dk[0, group.keys[group.is_key]] = grads.k[group.is_key]
        dv[0, group.keys[group.is_key]] = grads.v[group.is_key]
        if grads.coefficients is not None:
            dcoefficients[group.sequences] = grads.coefficients
        if dstate is not None and grads.state is not None:
            dstate[group.sequences] = grads.state
    return dq, dk, dv, dcoefficients, *_split(a, dstate)


def _whole(a: Arguments, state: Tensor | None) -> Problem:
    return _problem(a, a.q, a.k, a.v, a.coefficients, a.key_mask, state, a.at)


def _grouped(a: Arguments, state: Tensor | None, group: Group) -> Problem:
    key_mask = group.is_key
    if a.key_mask is not None:
        key_mask = key_mask & a.key_mask[0, group.keys]
    return _problem(
        a,
        a.q[0, group.queries].where(group.is_query[..., None, None], 0),  # row 0 stands in: it may hold NaN
        a.k[0, group.keys],
        a.v[0, group.keys],
        None if a.coefficients is None else a.coefficients[group.sequences],
        key_mask,
        None if state is None else state[group.sequences],
        group.at,
    )


def _problem(
    a: Arguments,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    coefficients: Tensor | None,
    key_mask: Tensor | None,
    state: Tensor | None,
    at: Tensor | None,
) -> Problem:
    return Problem(
        q=q,
        k=k,
        v=v,
        coefficients=coefficients,
        key_mask=key_mask,
        state=state,
        at=at,
        degrees=tuple(a.degrees),
        scale=a.scale,
        eps=a.eps,
        normalize=a.normalize,
        causal=a.causal,
        nonnegative=a.nonnegative,
    )


def _join(values: Tensor | None, normalizer: Tensor | None) -> Tensor | None:
    if values is None or normalizer is None:
        return None
    return torch.cat([values, normalizer[..., None]], dim=-1)


def _join_grads(a: Arguments, dvalues: Tensor | None, dnormalizer: Tensor | None) -> Tensor | None:
    if dvalues is None and dnormalizer is None:
        return None
    if dvalues is None:
        dvalues = a.v.new_zeros(a.state_shape, dtype=a.compute_dtype)
    if dnormalizer is None:
        dnormalizer = a.v.new_zeros(a.state_shape[:3], dtype=a.compute_dtype)
    return _join(dvalues, dnormalizer)


def _split(a: Arguments, state: Tensor | None) -> tuple[Tensor, Tensor]:
    if state is None:
        return _nothing(a), _nothing(a)
    return state[..., :-1].clone(memory_format=torch.contiguous_format), state[..., -1].clone()


def _nothing(a: Arguments) -> Tensor:
    return a.v.new_empty(0, dtype=a.compute_dtype)


# ---- On fake tensors ----


def _attend_fake(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, return_sums = Arguments(*inputs[:_NUM_ARGUMENTS]), inputs[-1]
    out = a.v.new_empty(*a.q.shape[:3], a.v.shape[-1])
    normalizer = a.q.new_empty(a.q.shape[:3], dtype=a.compute_dtype)
    return out, normalizer, *_fake_state(a, present=return_sums)


def _attend_backward_fake(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, coefficients = inputs
    a = Arguments(*inputs[5:-1])
    dcoefficients = torch.empty_like(a.coefficients) if coefficients and a.coefficients is not None else _nothing(a)
    grads = torch.empty_like(a.q), torch.empty_like(a.k), torch.empty_like(a.v), dcoefficients
    return *grads, *_fake_state(a, present=a.state_values is not None)


def _fake_state(a: Arguments, *, present: bool) -> tuple[Tensor, Tensor]:
    if not present:
        return _nothing(a), _nothing(a)
    shape = a.state_shape
    return a.v.new_empty(shape, dtype=a.compute_dtype), a.v.new_empty(shape[:3], dtype=a.compute_dtype)


# ---- Under vmap: the mapped axis joins the batch, or the row of packed sequences ----


class _Fold:
    """Turns ``size`` mapped calls into one; ``size`` may be 0, so that no length can be inferred from others."""

    def __init__(self, size: int, a: Arguments, dims: Any) -> None:
        self.size, self.packed = size, a.cu_seqlens is not None
        (self.batch_size, self.num_queries), self.seq_len = _shape(a.q, dims.q)[:2], _shape(a.k, dims.k)[1]
        self.num_sequences = self.batch_size
        if a.cu_seqlens is not None:
            self.num_sequences = _shape(a.cu_seqlens, dims.cu_seqlens)[0] - 1

    def rows(self, x: Tensor | None, dim: int | None) -> Tensor | None:
        """For what has (B, T or P, …): packed rows are strung together in time."""
        x = self._front(x, dim)
        if x is None:
            return None
        return x.flatten(0, 2)[None] if self.packed else x.flatten(0, 1)

    def sequences(self, x: Tensor | None, dim: int | None) -> Tensor | None:
        """For what has one entry a sequence."""
        x = self._front(x, dim)
        return None if x is None else x.flatten(0, 1)

    def positions(self, x: Tensor | None, dim: int | None) -> Tensor | None:
        x = self._front(x, dim)
        if x is not None and self.packed:
            x = x + self._offsets(x)[:, None, None]
        return self.rows(x, 0)

    def borders(self, x: Tensor | None, dim: int | None) -> Tensor | None:
        x = self._front(x, dim)
        if x is None:
            return None
        starts = (x[:, :-1] + self._offsets(x)[:, None]).flatten()
        return torch.cat([starts, starts.new_full((1,), self.size * self.seq_len)])

    def unrow_queries(self, x: Tensor) -> Tensor:
        return self._unrow(x, self.num_queries)

    def unrow_keys(self, x: Tensor) -> Tensor:
        return self._unrow(x, self.seq_len)

    def unsequence(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (self.size, self.num_sequences))

    def arguments(self, a: Arguments, dims: Arguments) -> Arguments:
        return a._replace(
            **{name: self.rows(getattr(a, name), getattr(dims, name)) for name in ("q", "k", "v", "key_mask")},
            **{
                name: self.sequences(getattr(a, name), getattr(dims, name))
                for name in ("coefficients", "state_values", "state_normalizer")
            },
            cu_seqlens=self.borders(a.cu_seqlens, dims.cu_seqlens),
            at=self.positions(a.at, dims.at),
        )

    def _front(self, x: Tensor | None, dim: int | None) -> Tensor | None:
        if x is None:
            return None
        return x.expand(self.size, *x.shape) if dim is None else x.movedim(dim, 0)

    def _unrow(self, x: Tensor, length: int) -> Tensor:
        if self.packed:
            return x[0].unflatten(0, (self.size, length))[:, None]
        return x.unflatten(0, (self.size, self.batch_size))

    def _offsets(self, like: Tensor) -> Tensor:
        return torch.arange(self.size, device=like.device, dtype=like.dtype) * self.seq_len


def _shape(x: Tensor, dim: int | None) -> tuple[int, ...]:
    """Of one mapped call's x."""
    return tuple(size for axis, size in enumerate(x.shape) if axis != dim)


def _attend_vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    a, return_sums = Arguments(*inputs[:_NUM_ARGUMENTS]), inputs[-1]
    dims = Arguments(*in_dims[:_NUM_ARGUMENTS])
    fold = _Fold(info.batch_size, a, dims)
    out, normalizer, values, state_normalizer = attend(*fold.arguments(a, dims), return_sums)
    outputs = fold.unrow_queries(out), fold.unrow_queries(normalizer)
    if not return_sums:
        return (*outputs, values, state_normalizer), (0, 0, None, None)
    return (*outputs, fold.unsequence(values), fold.unsequence(state_normalizer)), (0, 0, 0, 0)


def _attend_backward_vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    a, dims = Arguments(*inputs[5:-1]), Arguments(*in_dims[5:-1])
    fold = _Fold(info.batch_size, a, dims)
    rows = [fold.rows(x, dim) for x, dim in zip(inputs[:3], in_dims[:3], strict=True)]
    states = [fold.sequences(x, dim) for x, dim in zip(inputs[3:5], in_dims[3:5], strict=True)]
    dq, dk, dv, *others = attend_backward(*rows, *states, *fold.arguments(a, dims), inputs[-1])
    outputs = [fold.unrow_queries(dq), fold.unrow_keys(dk), fold.unrow_keys(dv)]
    out_dims: list[int | None] = [0, 0, 0]
    for grad, present in zip(others, (inputs[-1], *(a.state_values is not None,) * 2), strict=True):
        outputs.append(fold.unsequence(grad) if present else grad)
        out_dims.append(0 if present else None)
    return tuple(outputs), tuple(out_dims)


# ---- Autograd ----


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    a = Arguments(*inputs[:_NUM_ARGUMENTS])
    out, normalizer, *state = output
    return_sums = inputs[-1]
    ctx.set_materialize_grads(False)
    # AOTAutograd makes gradients for all differentiable outputs, also for a state that is not there.
    ctx.mark_non_differentiable(normalizer, *(() if return_sums else state))
    ctx.save_for_backward(out, normalizer, *a[:9])
    ctx.settings = a[9:]


def _differentiate(ctx: Any, dout: Tensor | None, _: Any, dvalues: Tensor | None, dnormalizer: Tensor | None) -> Any:
    out, normalizer, *tensors = ctx.saved_tensors
    a = Arguments(*tensors, *ctx.settings)
    wants_coefficients = a.coefficients is not None and ctx.needs_input_grad[3]
    if dout is None:
        dout = torch.zeros_like(out)
    dq, dk, dv, dcoefficients, dstate_values, dstate_normalizer = attend_backward(
        out, normalizer, dout, dvalues, dnormalizer, *a, wants_coefficients
    )
    has_state = a.state_values is not None
    grads = (
        dq,
        dk,
        dv,
        dcoefficients if wants_coefficients else None,
        None,
        dstate_values if has_state else None,
        dstate_normalizer if has_state else None,
    )
    return *grads, *[None] * (_NUM_ARGUMENTS + 1 - len(grads))


attend_backward = define_operator(
    "attend_backward(Tensor out, Tensor normalizer, Tensor dout, Tensor? dsum_values, Tensor? dsum_normalizer, "
    f"{_ARGUMENTS}, bool coefficient_grads) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    implementation=_attend_backward,
    fake=_attend_backward_fake,
    vmap=_attend_backward_vmap,
)

attend = define_operator(
    f"attend({_ARGUMENTS}, bool return_sums) -> (Tensor, Tensor, Tensor, Tensor)",
    implementation=_attend,
    fake=_attend_fake,
    vmap=_attend_vmap,
    setup_context=_setup_context,
    backward=_differentiate,
)
