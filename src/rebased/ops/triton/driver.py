"""Kernel attention on a GPU, in both directions: which kernels run, and over what.

Forward: states before each chunk (sums over segments first, where one walk per sequence would leave the card idle), then
outputs, all tiles at once. Backward: the states once more, gradients of queries; states of queries, from the end; gradients
of keys and values. Features exist on chip only; nothing is added atomically, so results do not vary from run to run.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rebased.ops.arguments import Arguments
from rebased.ops.triton.forward import forward_kernel
from rebased.ops.triton.key_grads import key_grads_kernel
from rebased.ops.triton.layout import Layout
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
from rebased.ops.triton.query_grads import query_grads_kernel
from rebased.ops.triton.states import segment_scan_kernel, states_kernel
from rebased.ops.triton.tuning import Launch, Tuning, tuning

MAX_FEATURE_DIM = 32
MAX_HEAD_DIM = 128
"""Wider values are computed a part at a time."""

States = tuple[Tensor, Tensor]
"""For each chunk or sequence, key head and feature in square form: Σ φ(x) vᵀ, in the operands' dtype, and Σ φ(x)."""


@dataclass(frozen=True)
class Plan:
    """One call: its inputs, how they are cut, and what kernels are compiled for."""

    a: Arguments
    tuning: Tuning
    layout: Layout
    head_dim: int
    """D, padded."""
    query_tiles: Pieces
    key_tiles: Pieces
    num_chunks: int
    """Of all sequences together; for packed ones, at most."""
    gathered: Gathered | None

    @property
    def is_packed(self) -> bool:
        return self.a.cu_seqlens is not None

    @property
    def num_key_heads(self) -> int:
        return self.a.k.shape[2]

    @property
    def operand(self) -> torch.dtype:
        return torch.bfloat16 if self.a.v.dtype == torch.bfloat16 else torch.float32

    @property
    def width(self) -> int:
        """Of a state with its moments, as one row of float32 numbers."""
        return self.layout.num_rows * (self.head_dim + 1)

    def shape(self) -> dict[str, Any]:
        """The constants that all kernels have in common."""
        a, degrees = self.a, self.layout.degrees
        return {
            "GROUP": a.q.shape[2] // a.k.shape[2],
            "F": a.q.shape[3],
            "FP": self.layout.padded,
            "D": a.v.shape[3],
            "DP": self.head_dim,
            "TERM0": int(0 in degrees),
            "TERM1": int(1 in degrees),
            "TERM2": int(2 in degrees),
            "CHUNK": self.tuning.chunk,
            "OPERAND": tl.bfloat16 if self.operand == torch.bfloat16 else tl.float32,
            "PRECISION": _precision(a.v.dtype),
            "PACKED": self.is_packed,
            "HAS_MASK": a.key_mask is not None,
            "HAS_COEFFICIENTS": a.coefficients is not None,
            "NORMALIZE": a.normalize,
            "DROP": a.nonnegative and a.normalize,
        }

    def tile_shape(self) -> dict[str, Any]:
        a = self.a
        several = len(self.layout.degrees) > 1 or self.layout.degrees == (1,)
        return self.shape() | {
            "ROWS": self.tuning.tile,
            "COLUMNS": self.tuning.columns,
            "NUM_I": self.tuning.num_i,
            "GATHERED": self.gathered is not None,
            "CAUSAL": a.causal,
            "CLAMP": a.nonnegative and a.normalize and several,
        }


def _parts(a: Arguments) -> list[Arguments]:
    """The call as kernels take it: rows of numbers side by side in memory, values of at most MAX_HEAD_DIM columns."""

    def rows(x: Tensor) -> Tensor:
        return x if x.stride(-1) == 1 else x.contiguous()

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
        a._replace(
            v=a.v[..., columns], state_values=None if a.state_values is None else a.state_values[..., columns]
        )
        for columns in slices
    ]


def make_plan(a: Arguments) -> Plan:
    B, T = a.k.shape[:2]
    P = a.q.shape[1]
    padded = max(16, triton.next_power_of_2(a.q.shape[3]))
    head_dim = max(16, triton.next_power_of_2(a.v.shape[3]))
    sizes = tuning(a.v.dtype, padded, head_dim)
    gathered = None
    if a.cu_seqlens is None:
        num_chunks = B * triton.cdiv(T, sizes.chunk)
        query_tiles, key_tiles = even_pieces(B, P, sizes.tile), even_pieces(B, T, sizes.tile)
        if a.at is not None and a.causal:
            gathered = gather_queries(a.at, even_chunks(B, T, sizes.chunk, a.q.device))
    else:
        chunks = packed_pieces(a.cu_seqlens, T, sizes.chunk, sizes.chunk)
        num_chunks = chunks.count
        query_tiles = key_tiles = packed_pieces(a.cu_seqlens, T, sizes.tile, sizes.chunk)
        if a.at is not None:
            whole = whole_sequences(a.cu_seqlens)
            gathered = gather_queries(a.at, packed_chunks(chunks, T) if a.causal else whole)
    if gathered is not None:
        query_tiles = gathered.pieces(sizes.tile)
    return Plan(
        a=a,
        tuning=sizes,
        layout=Layout(a.q.shape[3], padded, tuple(a.degrees)),
        head_dim=head_dim,
        query_tiles=query_tiles,
        key_tiles=key_tiles,
        num_chunks=num_chunks if a.causal else a.num_sequences,
        gathered=gathered,
    )


def forward(a: Arguments, *, return_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output, normaliser, and if asked for the sums over these keys, (N, Hk, E, D + 1)."""
    parts = [_forward(part, return_sums=return_sums) for part in _parts(a)]
    if len(parts) == 1:
        return parts[0]
    outs, normalizers, sums = zip(*parts, strict=True)
    joined = None
    if return_sums:
        joined = torch.cat([*(x[..., :-1] for x in sums), sums[0][..., -1:]], dim=-1)
    return torch.cat(outs, dim=-1), normalizers[0], joined


def _forward(a: Arguments, *, return_sums: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    plan = make_plan(a)
    prefix, total = _key_states(plan, need_total=return_sums)
    out = a.v.new_empty(*a.q.shape[:3], a.v.shape[3])
    normalizer = a.q.new_ones(a.q.shape[:3], dtype=torch.float32)
    tiles = plan.query_tiles
    gathered = plan.gathered
    forward_kernel[(tiles.count * a.q.shape[2],)](
        a.q,
        a.k,
        a.v,
        out,
        normalizer,
        _or(a.key_mask, a.q),
        _or(a.coefficients, normalizer),
        *(prefix or (out, normalizer)),
        _or(tiles.table, a.q),
        a.q if gathered is None else gathered.order,
        a.q if gathered is None else gathered.positions,
        *a.q.stride()[:3],
        *a.k.stride()[:3],
        *a.v.stride()[:3],
        a.q.shape[1],
        a.k.shape[1],
        tiles.per_row,
        a.q.shape[2],
        a.scale,
        a.eps,
        **plan.tile_shape(),
        TABLE=tiles.table is not None,
        HAS_STATE=prefix is not None,
        NONNEGATIVE=a.nonnegative,
        ROUNDING=_rounding(a.v.dtype),
        **_launch(plan.tuning.forward),
    )
    sums = None
    if total is not None:
        sums = plan.layout.to_packed(_with_moments(plan, total))
    return out, normalizer, sums


@dataclass(frozen=True)
class Grads:
    q: Tensor
    k: Tensor
    v: Tensor
    coefficients: Tensor | None
    state: Tensor | None


def backward(
    a: Arguments, out: Tensor, normalizer: Tensor, dout: Tensor, dsums: Tensor | None, *, coefficients: bool
) -> Grads:
    """All gradients; ``dsums`` (N, Hk, E, D + 1) is that of the sums."""
    parts, start = [], 0
    for part in _parts(a):
        columns = slice(start, start + part.v.shape[3])
        part_dsums = None
        if dsums is not None:  # the normaliser's own gradient counts once
            moments = dsums[..., -1:] if start == 0 else torch.zeros_like(dsums[..., -1:])
            part_dsums = torch.cat([dsums[..., columns], moments], dim=-1)
        start = columns.stop
        parts.append(
            _backward(
                part,
                out[..., columns].contiguous(),
                normalizer,
                dout[..., columns].contiguous(),
                part_dsums,
                coefficients=coefficients,
            )
        )
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: list[Grads]) -> Grads:
    """Of values computed a part at a time."""

    def total(tensors: list[Tensor]) -> Tensor:
        return torch.stack([x.float() for x in tensors]).sum(dim=0).to(tensors[0].dtype)

    coefficients = [x.coefficients for x in parts if x.coefficients is not None]
    states = [x.state for x in parts if x.state is not None]
    return Grads(
        total([x.q for x in parts]),
        total([x.k for x in parts]),
        torch.cat([x.v for x in parts], dim=-1),
        total(coefficients) if coefficients else None,
        torch.cat([*(x[..., :-1] for x in states), total([x[..., -1:] for x in states])], dim=-1) if states else None,
    )


def _backward(
    a: Arguments, out: Tensor, normalizer: Tensor, dout: Tensor, dsums: Tensor | None, *, coefficients: bool
) -> Grads:
    plan = make_plan(a)
    dq, weights, dcoefficients = _query_grads(plan, out, normalizer, dout, coefficients=coefficients)
    suffix, total = _query_states(plan, normalizer, dout, weights, dsums)
    dk, dv = _key_grads(plan, normalizer, dout, weights, suffix)
    dstate = None
    if total is not None:
        dstate = plan.layout.to_packed_transposed(_with_moments(plan, total), scale=a.scale)
    return Grads(dq, dk, dv, dcoefficients, dstate)


def _query_grads(
    plan: Plan, out: Tensor, normalizer: Tensor, dout: Tensor, *, coefficients: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    a, tiles, gathered = plan.a, plan.query_tiles, plan.gathered
    prefix, _ = _key_states(plan, need_total=False)
    dq = torch.empty_like(a.q, memory_format=torch.contiguous_format)
    weights = torch.empty_like(normalizer)
    partial = None
    if coefficients:
        partial = a.q.new_zeros(tiles.count, a.q.shape[2], len(a.degrees), dtype=torch.float32)
    query_grads_kernel[(tiles.count * a.q.shape[2],)](
        a.q,
        a.k,
        a.v,
        out,
        normalizer,
        dout,
        dq,
        weights,
        _or(partial, weights),
        _or(a.key_mask, a.q),
        _or(a.coefficients, normalizer),
        *(prefix or (out, normalizer)),
        _or(tiles.table, a.q),
        a.q if gathered is None else gathered.order,
        a.q if gathered is None else gathered.positions,
        *a.q.stride()[:3],
        *a.k.stride()[:3],
        *a.v.stride()[:3],
        a.q.shape[1],
        a.k.shape[1],
        tiles.per_row,
        a.q.shape[2],
        a.scale,
        **plan.tile_shape(),
        TABLE=tiles.table is not None,
        HAS_STATE=prefix is not None,
        COEFFICIENT_GRADS=coefficients,
        **_launch(plan.tuning.query_grads),
    )
    return dq, weights, None if partial is None else _sum_by_sequence(plan, partial)


def _key_grads(
    plan: Plan, normalizer: Tensor, dout: Tensor, weights: Tensor, suffix: States | None
) -> tuple[Tensor, Tensor]:
    a, tiles, gathered = plan.a, plan.key_tiles, plan.gathered
    dk = torch.empty_like(a.k, memory_format=torch.contiguous_format)
    dv = torch.empty_like(a.v, memory_format=torch.contiguous_format)
    key_grads_kernel[(tiles.count * plan.num_key_heads,)](
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
        _or(tiles.table, a.q),
        a.q if gathered is None else gathered.order,
        a.q if gathered is None else gathered.positions,
        a.q if gathered is None else gathered.borders,
        *a.q.stride()[:3],
        *a.k.stride()[:3],
        *a.v.stride()[:3],
        a.q.shape[1],
        a.k.shape[1],
        tiles.per_row,
        plan.num_key_heads,
        a.scale,
        **plan.tile_shape(),
        TABLE=tiles.table is not None,
        HAS_STATE=suffix is not None,
        **_launch(plan.tuning.key_grads),
    )
    return dk, dv


# ---- States ----


def _key_states(plan: Plan, *, need_total: bool) -> tuple[States | None, Tensor | None]:
    """Σ φ(k)vᵀ before each chunk (of whole sequences, if not causal), and over all of these keys."""
    a = plan.a
    initial = None
    if a.state_values is not None and a.state_normalizer is not None:
        values = plan.layout.to_square(a.state_values, scale=a.scale)
        moments = plan.layout.to_square(a.state_normalizer[..., None], scale=a.scale)
        initial = _padded(plan, values), moments[..., 0].contiguous()
    has_past = not a.causal or initial is not None or a.k.shape[1] > plan.tuning.chunk
    if not has_past and not need_total:
        return None, None
    return _states(plan, a.k, a.v, initial, of_queries=False, need_prefix=has_past, need_total=need_total)


def _query_states(
    plan: Plan, normalizer: Tensor, dout: Tensor, weights: Tensor, dsums: Tensor | None
) -> tuple[States | None, Tensor | None]:
    """Σ φ(q)·(dout / normaliser)ᵀ after each chunk plus the sums' own gradient, and over all of these queries."""
    a = plan.a
    initial = None
    if dsums is not None:
        square = plan.layout.to_square_transposed(dsums)
        initial = _padded(plan, square[..., :-1]), square[..., -1].contiguous()
    has_future = not a.causal or initial is not None or a.k.shape[1] > plan.tuning.chunk
    need_total = a.state_values is not None
    if not has_future and not need_total:
        return None, None
    return _states(
        plan,
        a.q,
        dout,
        initial,
        normalizer=normalizer,
        weights=weights,
        of_queries=True,
        need_prefix=has_future,
        need_total=need_total,
    )


def _states(
    plan: Plan,
    x: Tensor,
    v: Tensor,
    initial: States | None,
    *,
    normalizer: Tensor | None = None,
    weights: Tensor | None = None,
    of_queries: bool,
    need_prefix: bool,
    need_total: bool,
) -> tuple[States | None, Tensor | None]:
    a, sizes, rows, gathered = plan.a, plan.tuning, plan.layout.num_rows, plan.gathered if of_queries else None
    by_chunk = gathered is not None and a.causal
    row_length = a.k.shape[1] if a.causal else x.shape[1]  # causal segments are made of chunks, i.e. of keys
    segment = _segment_length(plan, row_length)
    if gathered is not None and not by_chunk:
        segments = gathered.pieces(segment)
    elif a.cu_seqlens is not None:
        segments = packed_pieces(a.cu_seqlens, row_length, segment, sizes.chunk)
    else:
        segments = even_pieces(x.shape[0], row_length, segment)
    groups = plan.layout.padded // sizes.states_num_i if 2 in a.degrees else 0
    several = row_length > segment
    write_prefix = need_prefix and a.causal
    partial = x.new_empty(0, dtype=torch.float32)
    if several or need_total or not write_prefix:
        partial = x.new_empty(segments.count, plan.num_key_heads, plan.width, dtype=torch.float32)
    prefix = None
    if write_prefix:
        shape = (plan.num_chunks, plan.num_key_heads, rows)
        prefix = x.new_empty(*shape, plan.head_dim, dtype=plan.operand), x.new_empty(shape, dtype=torch.float32)

    def walk(*, has_start: bool, write_total: bool, write_prefix: bool) -> None:
        states_kernel[(segments.count * plan.num_key_heads * (groups + 1),)](
            x,
            v,
            _or(a.key_mask, x),
            _or(normalizer, partial),
            _or(weights, partial),
            _or(a.coefficients, partial),
            x if gathered is None else gathered.order,
            x if gathered is None else gathered.borders,
            _or(segments.table, x),
            *(initial or (partial, partial)),
            partial,
            *(prefix or (partial, partial)),
            *x.stride()[:3],
            *v.stride()[:3],
            x.shape[1],
            row_length,
            segments.per_row,
            plan.num_key_heads,
            a.scale,
            **plan.shape()
            | {"GROUP": x.shape[2] // plan.num_key_heads, "HAS_MASK": a.key_mask is not None and not of_queries},
            SEGMENT=segment,
            ROWS=sizes.tile,
            NUM_I=sizes.states_num_i,
            TABLE=segments.table is not None,
            GATHERED=gathered is not None,
            BY_CHUNK=by_chunk,
            OF_QUERIES=of_queries,
            HAS_START=has_start,
            HAS_INITIAL=initial is not None,
            WRITE_TOTAL=write_total,
            WRITE_PREFIX=write_prefix,
            **_launch(sizes.states),
        )

    total = None
    if several or not write_prefix:
        walk(has_start=False, write_total=True, write_prefix=False)
        total = _sum_segments(plan, partial, segments, reverse=of_queries, write_prefix=write_prefix)
        if write_prefix:
            walk(has_start=True, write_total=False, write_prefix=True)
    else:
        walk(has_start=False, write_total=need_total, write_prefix=True)
        if need_total:
            total = _sum_segments(plan, partial, segments, reverse=of_queries, write_prefix=False)
    if need_prefix and not a.causal:
        assert total is not None
        prefix = _scaled(plan, total, initial)
    return prefix, total if need_total else None


def _segment_length(plan: Plan, row_length: int) -> int:
    """As few segments as give every multiprocessor something to do: each costs a state, and several a second walk."""
    sizes = plan.tuning
    chunks = triton.cdiv(row_length, sizes.chunk)
    groups = plan.layout.padded // sizes.states_num_i if 2 in plan.a.degrees else 0
    programs = plan.num_key_heads * (groups + 1) * (1 if plan.is_packed else plan.a.num_sequences)
    wanted = triton.cdiv(sizes.programs, programs)
    if wanted == 1:
        return sizes.chunk * triton.next_power_of_2(chunks)
    return sizes.chunk * max(1, triton.next_power_of_2(triton.cdiv(chunks, wanted)))


def _sum_segments(plan: Plan, partial: Tensor, segments: Pieces, *, reverse: bool, write_prefix: bool) -> Tensor:
    if segments.table is None and segments.per_row == 1 and not write_prefix:
        return partial
    total = partial.new_empty(plan.a.num_sequences, plan.num_key_heads, plan.width)
    block = 256
    segment_scan_kernel[(plan.a.num_sequences * plan.num_key_heads * triton.cdiv(plan.width, block),)](
        partial,
        total,
        _or(segments.first_piece, partial),
        segments.per_row,
        plan.num_key_heads,
        WIDTH=plan.width,
        BLOCK=block,
        TABLE=segments.table is not None,
        REVERSE=reverse,
        WRITE_PREFIX=write_prefix,
        num_warps=2,
    )
    return total


def _scaled(plan: Plan, total: Tensor, initial: States | None) -> States:
    """Sums over whole sequences as a prefix."""
    rows, head_dim = plan.layout.num_rows, plan.head_dim
    values = plan.layout.scaled(total[..., : rows * head_dim].unflatten(-1, (rows, head_dim)), scale=plan.a.scale)
    moments = plan.layout.scaled(total[..., rows * head_dim :, None], scale=plan.a.scale)[..., 0]
    if initial is not None:
        values, moments = values + initial[0], moments + initial[1]
    return values.to(plan.operand), moments.contiguous()


def _with_moments(plan: Plan, total: Tensor) -> Tensor:
    """Sums and moments side by side, without padding in D: (N, Hk, rows, D + 1)."""
    rows, head_dim = plan.layout.num_rows, plan.head_dim
    values = total[..., : rows * head_dim].unflatten(-1, (rows, head_dim))
    return torch.cat([values[..., : plan.a.v.shape[3]], total[..., rows * head_dim :, None]], dim=-1)


def _padded(plan: Plan, values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values, (0, plan.head_dim - values.shape[-1])).contiguous()


def _sum_by_sequence(plan: Plan, partial: Tensor) -> Tensor:
    """Σ over the tiles of a sequence; as a matrix product, since atomic additions come in any order."""
    tiles = plan.query_tiles
    if tiles.table is None:
        return partial.unflatten(0, (-1, tiles.per_row)).sum(dim=1)
    sequences = torch.arange(plan.a.num_sequences, device=partial.device)
    is_mine = tiles.table[:, 0] == sequences[:, None]
    return (is_mine.double() @ partial.double().flatten(1)).float().unflatten(1, partial.shape[1:])


# ---- Small things ----


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel does not read a missing argument, but something must be passed."""
    return other if tensor is None else tensor


def _launch(launch: Launch) -> dict[str, int]:
    return {"num_warps": launch.num_warps, "num_stages": launch.num_stages}


def _allows_tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def _precision(dtype: torch.dtype) -> str:
    """float16 has no more bits than TF32, but a narrower range than its squares; float32 takes three TF32 products."""
    return "tf32" if dtype != torch.float32 or _allows_tf32() else "tf32x3"


def _rounding(dtype: torch.dtype) -> float:
    """What of the state's part of the normaliser counts as zero, relative to the terms it is the sum of."""
    if dtype == torch.bfloat16:
        return 2.0**-11
    return 2.0**-14 if dtype == torch.float16 or _allows_tf32() else 32 * 2.0**-23
