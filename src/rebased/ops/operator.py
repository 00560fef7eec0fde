"""``rebased::attend``: polynomial kernel attention as one opaque operator, and its backward as another.

Polynomials enter as tensors and numbers (degrees, coefficients), so that the operator has a schema; a feature map's
features enter as queries and keys of the kernel s = qᵀk, degree 1. Shapes are those of `kernel_attention`, and:

* ``coefficients`` (N, H, terms) and the state's tensors have N = B, or the number of sequences if ``cu_seqlens`` packs;
* the sums it returns are over this call's keys: adding them to the state is the caller's part;
* outputs that nobody asked for have no elements.
"""

from typing import Any

import torch
from torch import Tensor

from rebased.ops import chunked
from rebased.ops.arguments import NUM_ARGUMENTS, SCHEMA, Arguments
from rebased.ops.fold import Fold
from rebased.ops.opaque import define_operator
from rebased.ops.packing import Group, group_sequences
from rebased.ops.problem import Problem

# ---- On real tensors ----


def _attend(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, return_sums = Arguments(*inputs[:NUM_ARGUMENTS]), inputs[-1]
    if _runs_on_triton(a):
        from rebased.ops.triton import driver

        out, normalizer, sums = driver.forward(a, return_sums=return_sums)
        return out, normalizer, *_split(a, sums)
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
        if sums is not None and group_sums is not None:
            sums[group.sequences] = group_sums
    return out, normalizer, *_split(a, sums)


def _attend_backward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    out, normalizer, dout, dvalues, dnormalizer, *rest, coefficients = inputs
    a = Arguments(*rest)
    dsums = _join_grads(a, dvalues, dnormalizer)
    if _runs_on_triton(a):
        from rebased.ops.triton import driver

        found = driver.backward(a, out, normalizer, dout, dsums, coefficients=coefficients)
        dcoefficients = _nothing(a) if found.coefficients is None else found.coefficients
        return found.q, found.k, found.v, dcoefficients, *_split(a, found.state)
    state = _join(a.state_values, a.state_normalizer)
    if a.cu_seqlens is None:
        grads = chunked.backward(_whole(a, state), out, normalizer, dout, dsums, coefficients=coefficients)
        dcoefficients = _nothing(a) if grads.coefficients is None else grads.coefficients.sum(dim=1)
        return grads.q, grads.k, grads.v, dcoefficients, *_split(a, grads.state)
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (a.q, a.k, a.v))
    dcoefficients = torch.zeros_like(a.coefficients) if coefficients and a.coefficients is not None else _nothing(a)
    dstate = None if state is None else torch.zeros_like(state)
    for group in group_sequences(a.cu_seqlens, None if a.at is None else a.at[0]):
        grads = chunked.backward(
            _grouped(a, state, group),
            group.pick_queries(out),
            group.pick_queries(normalizer[..., None], fill=1.0)[..., 0],
            group.pick_queries(dout),
            None if dsums is None else dsums[group.sequences],
            coefficients=coefficients,
        )
        dq[0, group.queries[group.is_query]] = grads.q[group.is_query]
        dk[0, group.keys[group.is_key]] = grads.k[group.is_key]
        dv[0, group.keys[group.is_key]] = grads.v[group.is_key]
        if grads.coefficients is not None:
            dcoefficients[group.sequences] = grads.coefficients.sum(dim=1)
        if dstate is not None and grads.state is not None:
            dstate[group.sequences] = grads.state
    return dq, dk, dv, dcoefficients, *_split(a, dstate)


def _runs_on_triton(a: Arguments) -> bool:
    return a.backend == "triton" and a.q.numel() > 0 and a.k.numel() > 0


def _whole(a: Arguments, state: Tensor | None) -> Problem:
    return _problem(a, a.q, a.k, a.v, a.coefficients, a.key_mask, state, a.at)


def _grouped(a: Arguments, state: Tensor | None, group: Group) -> Problem:
    key_mask = group.is_key
    if a.key_mask is not None:
        key_mask = key_mask & a.key_mask[0, group.keys]
    return _problem(
        a,
        group.pick_queries(a.q),
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
    a, return_sums = Arguments(*inputs[:NUM_ARGUMENTS]), inputs[-1]
    out = a.v.new_empty(*a.q.shape[:3], a.v.shape[-1])
    normalizer = a.q.new_empty(a.q.shape[:3], dtype=a.compute_dtype)
    return out, normalizer, *_fake_state(a, present=return_sums)


def _attend_backward_fake(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    *_, coefficients = inputs
    a = Arguments(*inputs[5:-1])
    dcoefficients = torch.empty_like(a.coefficients) if coefficients and a.coefficients is not None else _nothing(a)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (a.q, a.k, a.v))
    return dq, dk, dv, dcoefficients, *_fake_state(a, present=a.state_values is not None)


def _fake_state(a: Arguments, *, present: bool) -> tuple[Tensor, Tensor]:
    if not present:
        return _nothing(a), _nothing(a)
    shape = a.state_shape
    return a.v.new_empty(shape, dtype=a.compute_dtype), a.v.new_empty(shape[:3], dtype=a.compute_dtype)


# ---- Under vmap ----


def _attend_vmap(operator: Any, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    a, return_sums = Arguments(*inputs[:NUM_ARGUMENTS]), inputs[-1]
    fold = Fold(info.batch_size, a, in_dims[:NUM_ARGUMENTS])
    out, normalizer, values, state_normalizer = operator(*fold.arguments(a), return_sums)
    outputs = fold.unrow_queries(out), fold.unrow_queries(normalizer)
    if not return_sums:
        return (*outputs, values, state_normalizer), (0, 0, None, None)
    return (*outputs, fold.unsequence(values), fold.unsequence(state_normalizer)), (0, 0, 0, 0)


def _attend_backward_vmap(operator: Any, info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
    a, coefficients = Arguments(*inputs[5:-1]), inputs[-1]
    fold = Fold(info.batch_size, a, in_dims[5:-1])
    rows = [fold.rows(x, dim) for x, dim in zip(inputs[:3], in_dims[:3], strict=True)]
    sums = [None if x is None else fold.sequences(x, dim) for x, dim in zip(inputs[3:5], in_dims[3:5], strict=True)]
    dq, dk, dv, *others = operator(*rows, *sums, *fold.arguments(a), coefficients)
    outputs = [fold.unrow_queries(dq), fold.unrow_keys(dk), fold.unrow_keys(dv)]
    out_dims: list[int | None] = [0, 0, 0]
    for grad, present in zip(others, (coefficients, *(a.state_values is not None,) * 2), strict=True):
        outputs.append(fold.unsequence(grad) if present else grad)
        out_dims.append(0 if present else None)
    return tuple(outputs), tuple(out_dims)


# ---- Autograd ----


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    a = Arguments(*inputs[:NUM_ARGUMENTS])
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
    return *grads, *[None] * (NUM_ARGUMENTS + 1 - len(grads))


attend_backward = define_operator(
    "attend_backward(Tensor out, Tensor normalizer, Tensor dout, Tensor? dsum_values, Tensor? dsum_normalizer, "
    f"{SCHEMA}, bool coefficient_grads) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    implementation=_attend_backward,
    fake=_attend_backward_fake,
    vmap=_attend_backward_vmap,
)

attend = define_operator(
    f"attend({SCHEMA}, bool return_sums) -> (Tensor, Tensor, Tensor, Tensor)",
    implementation=_attend,
    fake=_attend_fake,
    vmap=_attend_vmap,
    setup_context=_setup_context,
    backward=_differentiate,
)
