"""Kernel attention on a GPU, in both directions: which kernels run, and over what.

Forward: states before each chunk (in segments, where one walk per sequence would leave the card idle), then outputs,
all tiles at once. Backward: the states once more, gradients of queries; states of queries, from the end; gradients of
keys and values. Queries at so few positions that they meet all keys directly have one kernel for all gradients.
Features exist on chip only; nothing is added atomically, so results do not vary from run to run.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rebased.ops.arguments import Arguments
from rebased.ops.blocks import MAX_DIRECT_KEYS
from rebased.ops.triton.pieces import (
    Gathered,
    Pieces,
    even_chunks,
    even_pieces,
    gather_queries,
    packed_chunks,
    packed_pieces,
    whole_sequences,
)
from rebased.ops.triton.plan import Plan, plan_of

MAX_HEAD_DIM = 128
"""Wider values are computed a part at a time."""
_MAX_TIME_STRIDE = (1 << 31) // MAX_DIRECT_KEYS

Sums = tuple[Tensor, Tensor]
"""For each key head and feature in square form: Σ φ(x) vᵀ, (…, Hk, rows, DP), and Σ φ(x), (…, Hk, rows).

Over what comes before (after) each chunk or segment, or over whole sequences: `rebased.ops.triton.tiles.slot_of` says
where each is kept.
"""


@dataclass(frozen=True)
class Grads:
    q: Tensor
    k: Tensor
    v: Tensor
    coefficients: Tensor | None
    state: Tensor | None


def forward(a: Arguments, *, return_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, normaliser, and if asked for the sums over these keys, (N, Hk, E, D + 1)."""
    parts = [_forward(_Call(part), return_sums=return_sums) for part in _parts(a)]
    if len(parts) == 1:
        return parts[0]
    outs, normalizers, sums = zip(*parts, strict=True)
    joined = None
    if return_sums:
        joined = torch.cat([*(x[..., :-1] for x in sums), sums[0][..., -1:]], dim=-1)
    return torch.cat(outs, dim=-1), normalizers[0], joined


def backward(
    a: Arguments, out: Tensor, normalizer: Tensor, dout: Tensor, dsums: Tensor | None, *, coefficients: bool
) -> Grads:
    """All gradients; ``dsums`` (N, Hk, E, D + 1) is that of the sums."""
    normalizer = normalizer.contiguous()  # vmap may have expanded it
    parts, start = [], 0
    calls = _parts(a)
    for part in calls:
        columns = slice(start, start + part.v.shape[3])
        part_dsums = None
        if dsums is not None:  # the normaliser's own gradient counts once
            moments = dsums[..., -1:] if start == 0 else torch.zeros_like(dsums[..., -1:])
            part_dsums = torch.cat([dsums[..., columns], moments], dim=-1)
        start = columns.stop
        part_out, part_dout = out[..., columns].contiguous(), dout[..., columns].contiguous()
        call = _Call(part, grad_dtype=a.q.dtype if len(calls) == 1 else torch.float32)
        parts.append(_backward(call, part_out, normalizer, part_dout, part_dsums, coefficients=coefficients))
    return parts[0] if len(parts) == 1 else _joined(parts, a)


def _parts(a: Arguments) -> list[Arguments]:
    """The call as kernels take it: rows of numbers side by side in memory, values of at most MAX_HEAD_DIM columns."""

    def rows(x: Tensor) -> Tensor:
        # A tile's rows, and the keys that few queries meet, are found by offsets of 32 bits.
        return x if x.stride(-1) == 1 and x.stride(1) < _MAX_TIME_STRIDE else x.contiguous()

    a = a._replace(
        q=rows(a.q),
        k=rows(a.k),
        v=rows(a.v),
        coefficients=None if a.coefficients is None else a.coefficients.float().contiguous(),
        key_mask=None if a.key_mask is None else a.key_mask.contiguous().view(torch.uint8),
        cu_seqlens=None if a.cu_seqlens is None else a.cu_seqlens.long(),
        at=None if a.at is None else a.at.long(),
    )
    D = a.v.shape[3]
    if D <= MAX_HEAD_DIM:
        return [a]
    slices = [slice(start, min(start + MAX_HEAD_DIM, D)) for start in range(0, D, MAX_HEAD_DIM)]
    return [
        a._replace(v=a.v[..., columns], state_values=None if a.state_values is None else a.state_values[..., columns])
        for columns in slices
    ]


def _joined(parts: list[Grads], a: Arguments) -> Grads:
    """Of values computed a part at a time; their sums are rounded once."""

    def total(tensors: list[Tensor]) -> Tensor:
        return torch.stack(tensors).sum(dim=0)

    coefficients = [x.coefficients for x in parts if x.coefficients is not None]
    states = [x.state for x in parts if x.state is not None]
    return Grads(
        total([x.q for x in parts]).to(a.q.dtype),
        total([x.k for x in parts]).to(a.k.dtype),
        torch.cat([x.v for x in parts], dim=-1),
        total(coefficients) if coefficients else None,
        torch.cat([*(x[..., :-1] for x in states), total([x[..., -1:] for x in states])], dim=-1) if states else None,
    )


class _Call:
    """One call: its tensors, its plan, and how its rows are cut."""

    def __init__(self, a: Arguments, *, grad_dtype: torch.dtype | None = None) -> None:
        self.a = a
        self.grad_dtype = grad_dtype
        """Of the gradients of queries and keys, if not their own."""
        self.plan: Plan = plan_of(a)

    @cached_property
    def gathered(self) -> Gathered | None:
        if not self.plan.is_gathered:
            return None
        assert self.a.at is not None
        return gather_queries(self.a.at, self._chunks())

    def _chunks(self) -> Tensor:
        a, chunk = self.a, self.plan.tuning.chunk
        B, T = a.k.shape[:2]
        if a.cu_seqlens is None:
            return even_chunks(B, T, chunk, a.q.device)
        if not a.causal:
            return whole_sequences(a.cu_seqlens)
        return packed_chunks(packed_pieces(a.cu_seqlens, T, chunk, chunk), T)

    def query_pieces(self, length: int) -> Pieces:
        return self._pieces(self.a.q, length) if self.gathered is None else self.gathered.pieces(length)

    def key_pieces(self, length: int) -> Pieces:
        return self._pieces(self.a.k, length)

    def segments(self, length: int, *, of_queries: bool) -> Pieces:
        if of_queries and not self.a.causal:
            return self.query_pieces(length)
        return self.key_pieces(length)

    def _pieces(self, x: Tensor, length: int) -> Pieces:
        if self.a.cu_seqlens is not None:
            return packed_pieces(self.a.cu_seqlens, x.shape[1], length, self.plan.tuning.chunk)
        return even_pieces(x.shape[0], x.shape[1], length)

    def query_order(self) -> list[Tensor]:
        """Order and positions; a kernel does not read what is missing, but something must be passed."""
        return [self.a.q, self.a.q] if self.gathered is None else [self.gathered.order, self.gathered.positions]

    def tile_numbers(self, pieces: Pieces, num_heads: int) -> list[int]:
        return [*self.plan.strides, self.a.q.shape[1], self.a.k.shape[1], pieces.per_row, num_heads]


def _forward(call: _Call, *, return_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    a, plan = call.a, call.plan
    prefix, total = _key_states(call, need_total=return_sums)
    out = a.v.new_empty(*a.q.shape[:3], a.v.shape[3])
    new_normalizer = a.q.new_empty if a.normalize else a.q.new_ones
    normalizer = new_normalizer(a.q.shape[:3], dtype=torch.float32)
    pieces = call.query_pieces(plan.tuning.forward.rows)
    plan.forward(has_state=prefix is not None, has_initial=a.state_values is not None)(
        pieces.count * plan.num_heads,
        [
            a.q,
            a.k,
            a.v,
            out,
            normalizer,
            _or(a.key_mask, a.q),
            _or(a.coefficients, normalizer),
            *(prefix or (out, normalizer)),
            _or(pieces.table, a.q),
            *call.query_order(),
        ],
        call.tile_numbers(pieces, plan.num_heads),
        [a.scale, a.eps],
    )
    return out, normalizer, None if total is None else plan.layout.to_packed(_with_moments(plan, total))


def _backward(
    call: _Call, out: Tensor, normalizer: Tensor, dout: Tensor, dsums: Tensor | None, *, coefficients: bool
) -> Grads:
    if call.plan.walks_once and call.a.state_values is None and dsums is None:
        return _few_queries_grads(call, normalizer, dout, coefficients=coefficients)
    dq, weights, factors, dcoefficients = _query_grads(call, out, normalizer, dout, coefficients=coefficients)
    suffix, after, total = _query_states(call, factors, dout, weights, dsums)
    dk, dv = _key_grads(call, normalizer, dout, weights, suffix, after, has_initial=dsums is not None)
    dstate = None
    if total is not None:
        dstate = call.plan.layout.to_square_transposed(_with_moments(call.plan, total))
    return Grads(dq, dk, dv, dcoefficients, dstate)


def _few_queries_grads(call: _Call, normalizer: Tensor, dout: Tensor, *, coefficients: bool) -> Grads:
    a, plan = call.a, call.plan
    assert a.at is not None
    B, P, H = a.q.shape[:3]
    dq, dk = (torch.empty_like(x, dtype=call.grad_dtype, memory_format=torch.contiguous_format) for x in (a.q, a.k))
    dv = torch.empty_like(a.v, memory_format=torch.contiguous_format)
    dcoefficients = a.q.new_empty(B, H, len(a.degrees), dtype=torch.float32) if coefficients else None
    plan.few_queries_grads(coefficients=coefficients)(
        B * H,
        [
            a.q,
            a.k,
            a.v,
            normalizer,
            dout,
            dq,
            dk,
            dv,
            _or(dcoefficients, normalizer),
            _or(a.key_mask, a.q),
            _or(a.coefficients, normalizer),
            a.at.contiguous(),
        ],
        [*plan.strides, P, a.k.shape[1], H],
        [a.scale],
    )
    return Grads(dq, dk, dv, dcoefficients, None)


def _query_grads(
    call: _Call, out: Tensor, normalizer: Tensor, dout: Tensor, *, coefficients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of the queries and of each normaliser, 1 / normaliser where the state counts, and the coefficients'."""
    a, plan = call.a, call.plan
    pieces = call.query_pieces(plan.tuning.query_grads.rows)
    prefix, _ = _key_states(call, need_total=False)
    dq = torch.empty_like(a.q, dtype=call.grad_dtype, memory_format=torch.contiguous_format)
    weights, factors = torch.empty_like(normalizer), torch.empty_like(normalizer)
    partial = None
    if coefficients:
        partial = a.q.new_zeros(pieces.count, plan.num_heads, len(a.degrees), dtype=torch.float32)
    launch = plan.query_grads(
        has_state=prefix is not None, has_initial=a.state_values is not None, coefficients=coefficients
    )
    launch(
        pieces.count * plan.num_heads,
        [
            a.q,
            a.k,
            a.v,
            out,
            normalizer,
            dout,
            dq,
            weights,
            factors,
            _or(partial, weights),
            _or(a.key_mask, a.q),
            _or(a.coefficients, normalizer),
            *(prefix or (out, normalizer)),
            _or(pieces.table, a.q),
            *call.query_order(),
        ],
        call.tile_numbers(pieces, plan.num_heads),
        [a.scale],
    )
    return dq, weights, factors, None if partial is None else _sum_by_sequence(a, partial, pieces)


def _key_grads(
    call: _Call,
    normalizer: Tensor,
    dout: Tensor,
    weights: Tensor,
    suffix: Sums | None,
    after: Sums | None,
    *,
    has_initial: bool,
) -> tuple[Tensor, Tensor]:
    """Given the states after each chunk, or where sequences are cut into segments, within a segment and after it."""
    a, plan = call.a, call.plan
    pieces = call.key_pieces(plan.key_grads_tile.rows)
    dk = torch.empty_like(a.k, dtype=call.grad_dtype, memory_format=torch.contiguous_format)
    dv = torch.empty_like(a.v, memory_format=torch.contiguous_format)
    plan.key_grads(has_state=suffix is not None, has_initial=has_initial)(
        pieces.count * plan.num_key_heads,
        [
            a.q,
            a.k,
            a.v,
            normalizer,
            dout,
            weights,
            dk,
            dv,
            _or(a.key_mask, a.q),
            _or(a.coefficients, normalizer),
            *(suffix or (dv, normalizer)),
            *(after or suffix or (dv, normalizer)),
            _or(pieces.table, a.q),
            *call.query_order(),
            a.q if call.gathered is None else call.gathered.borders,
        ],
        [*call.tile_numbers(pieces, plan.num_key_heads), plan.segments_per_row],
        [a.scale],
    )
    return dk, dv


# ---- States ----


def _key_states(call: _Call, *, need_total: bool) -> tuple[Sums | None, Tensor | None]:
    """Σ φ(k)vᵀ before each chunk (of whole sequences, if not causal), and over all of these keys."""
    a, plan = call.a, call.plan
    initial = None
    if a.state_values is not None and a.state_normalizer is not None:
        values = plan.layout.to_square(a.state_values)
        moments = plan.layout.to_square(a.state_normalizer[..., None])
        initial = _padded(plan, values), moments[..., 0].contiguous()
    need_prefix = plan.has_several_chunks or initial is not None
    if not need_prefix and not need_total:
        return None, None
    prefix, _, total = _states(call, a.k, a.v, initial, None, None, need_prefix=need_prefix, need_total=need_total)
    return prefix, total


def _query_states(
    call: _Call, factors: Tensor, dout: Tensor, weights: Tensor, dsums: Tensor | None
) -> tuple[Sums | None, Sums | None, Tensor | None]:
    """Σ φ(q)·(dout / normaliser)ᵀ after each chunk plus the sums' own gradient, and over all of these queries.

    Where there are several segments, the first is of the chunk's own one alone, and the second of those after it.
    """
    a, plan = call.a, call.plan
    initial = None
    if dsums is not None:
        square = plan.layout.to_packed_transposed(dsums)
        initial = _padded(plan, square[..., :-1]), square[..., -1].contiguous()
    need_suffix, need_total = plan.has_several_chunks or initial is not None, a.state_values is not None
    if not need_suffix and not need_total:
        return None, None, None
    return _states(call, a.q, dout, initial, factors, weights, need_prefix=need_suffix, need_total=need_total)


def _states(
    call: _Call,
    x: Tensor,
    v: Tensor,
    initial: Sums | None,
    factors: Tensor | None,
    weights: Tensor | None,
    *,
    need_prefix: bool,
    need_total: bool,
) -> tuple[Sums | None, Sums | None, Tensor | None]:
    """Over queries where there are factors and weights, else over keys: `_query_states`, `_key_states`."""
    a, plan, of_queries = call.a, call.plan, factors is not None
    gathered = call.gathered if of_queries else None
    row_length = plan.segmented_length(of_queries=of_queries)
    segment = plan.segment(row_length)
    segments = call.segments(segment, of_queries=of_queries)
    has_several = row_length > segment
    write_prefix = need_prefix and a.causal
    write_total = need_total or not write_prefix
    num_segments = 0
    if has_several:
        num_segments = segments.count if segments.table is None else row_length // segment + 1
    num_sums = num_segments + (a.num_sequences if write_total else 0)
    sums = x.new_empty(num_sums, plan.num_key_heads, plan.width, dtype=torch.float32)
    total = sums[num_segments:] if write_total else None
    if total is not None and segments.table is not None:
        total.zero_()  # of a sequence without tokens nothing else is written
    prefix = sums, sums
    if write_prefix:
        num_slots = plan.num_slots(plan.tuning.chunk, own_edges=initial is not None)
        prefix = _new_sums(plan, x, num_slots, plan.operand)
    walk = plan.states(
        v_head=v.stride(2),
        of_queries=of_queries,
        has_initial=initial is not None,
        write_sums=has_several or write_total,
        write_total=write_total,
        write_prefix=write_prefix,
    )
    walk(
        segments.count * plan.num_key_heads * (plan.feature_groups + 1),
        [
            x,
            v,
            _or(a.key_mask, x),
            _or(factors, sums),
            _or(weights, sums),
            _or(a.coefficients, sums),
            x if gathered is None else gathered.order,
            x if gathered is None else gathered.borders,
            _or(segments.table, x),
            *(initial or (sums, sums)),
            sums,
            *prefix,
        ],
        [*x.stride()[:3], *v.stride()[:3], x.shape[1], row_length, segments.per_row, num_segments, plan.num_key_heads],
        [a.scale],
    )
    before = None
    if has_several:
        if write_prefix:
            dtype = plan.operand if of_queries else torch.float32
            before = _new_sums(plan, x, plan.num_slots(segment, own_edges=False), dtype)
        scan = plan.segment_scan(
            row_length=row_length, reverse=of_queries, write_total=write_total, write_before=before is not None
        )
        scan(
            a.num_sequences * plan.num_key_heads * plan.scan_blocks,
            [sums, *(before or (sums, sums)), _or(segments.borders, sums)],
            [segments.per_row, num_segments, plan.num_key_heads],
            [],
        )
    if before is not None and not of_queries:
        # One state is half the work of two, but rounded twice. Of the sums over queries, the gradients of keys and
        # values would show it: 1.36 times SDPA's errors.
        plan.shift()(
            segments.count * plan.num_key_heads * plan.shift_blocks,
            [*before, *prefix, _or(segments.table, x)],
            [row_length, segments.per_row, plan.num_key_heads],
            [],
        )
        before = None
    states = None
    if need_prefix and a.causal:
        states = prefix
    elif need_prefix:
        assert total is not None
        states = _as_states(plan, total, initial)
    return states, before, total if need_total else None


def _new_sums(plan: Plan, like: Tensor, count: int, dtype: torch.dtype) -> Sums:
    shape = (count, plan.num_key_heads, plan.layout.num_rows)
    return like.new_empty(*shape, plan.head_dim, dtype=dtype), like.new_empty(shape, dtype=torch.float32)


def _as_states(plan: Plan, total: Tensor, initial: Sums | None) -> Sums:
    """Sums over whole sequences, which is what every query sees if attention is not causal."""
    rows, head_dim = plan.layout.num_rows, plan.head_dim
    values = total[..., : rows * head_dim].unflatten(-1, (rows, head_dim))
    moments = total[..., rows * head_dim :]
    if initial is not None:
        values, moments = values + initial[0], moments + initial[1]
    return values.to(plan.operand).contiguous(), moments.contiguous()


def _with_moments(plan: Plan, total: Tensor) -> Tensor:
    """Sums and moments side by side, without padding in D: (N, Hk, rows, D + 1)."""
    rows, head_dim = plan.layout.num_rows, plan.head_dim
    values = total[..., : rows * head_dim].unflatten(-1, (rows, head_dim))
    return torch.cat([values[..., : plan.s.head_dim], total[..., rows * head_dim :, None]], dim=-1)


def _padded(plan: Plan, values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values, (0, plan.head_dim - values.shape[-1])).contiguous()


def _sum_by_sequence(a: Arguments, partial: Tensor, tiles: Pieces) -> Tensor:
    """Σ over the tiles of a sequence, which come in order; one after another, and nothing reaches another's sum."""
    if tiles.table is None:
        return partial.unflatten(0, (-1, tiles.per_row)).sum(dim=1)
    counts = torch.bincount(tiles.table[:, 0], minlength=a.num_sequences)
    sums = torch.segment_reduce(partial.flatten(1), "sum", lengths=counts, axis=0, unsafe=True)
    return sums.unflatten(1, partial.shape[1:])


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel does not read a missing argument, but something must be passed."""
    return other if tensor is None else tensor
