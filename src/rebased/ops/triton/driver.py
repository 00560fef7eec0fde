"""Kernel attention on a GPU, in both directions: which kernels run, and over what.

Forward: states before each chunk (sums over segments first, where one walk per sequence would leave the card idle),
then outputs, all tiles at once. Backward: the states once more, gradients of queries; states of queries, from the end;
gradients of keys and values. Features exist on chip only; nothing is added atomically, so results do not vary from run
to run.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rebased.ops.arguments import Arguments
from rebased.ops.dtypes import rounding
from rebased.ops.triton.forward import forward_kernel
from rebased.ops.triton.key_grads import key_grads_kernel
from rebased.ops.triton.launch import launch
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
from rebased.ops.triton.states import segment_scan_kernel, shift_kernel, states_kernel
from rebased.ops.triton.tuning import Tile, Tuning, tuning

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
    num_chunks: int
    """Of all sequences together; for packed ones, at most. Without causality a sequence is one chunk."""
    gathered: Gathered | None

    @property
    def is_packed(self) -> bool:
        return self.a.cu_seqlens is not None

    @property
    def num_heads(self) -> int:
        return self.a.q.shape[2]

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

    def query_pieces(self, length: int) -> Pieces:
        if self.gathered is not None:
            return self.gathered.pieces(length)
        if self.a.cu_seqlens is not None:
            return packed_pieces(self.a.cu_seqlens, self.a.q.shape[1], length, self.tuning.chunk)
        return even_pieces(self.a.q.shape[0], self.a.q.shape[1], length)

    def key_pieces(self, length: int) -> Pieces:
        if self.a.cu_seqlens is not None:
            return packed_pieces(self.a.cu_seqlens, self.a.k.shape[1], length, self.tuning.chunk)
        return even_pieces(self.a.k.shape[0], self.a.k.shape[1], length)

    def sizes(self) -> dict[str, Any]:
        """The constants of sizes, in the kernels' order."""
        a, degrees = self.a, self.layout.degrees
        return {
            "GROUP": self.num_heads // self.num_key_heads,
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
        }

    def is_even(self, *lengths: int, tile: Tile) -> bool:
        """Whether rows of such lengths are whole tiles, so that no load needs a mask."""
        return not self.is_packed and self.gathered is None and not any(length % tile.rows for length in lengths)

    def tile_constants(self, tile: Tile, pieces: Pieces, *, has_state: bool) -> dict[str, Any]:
        """The constants of the kernels that work on tiles of queries or keys."""
        a, degrees = self.a, self.layout.degrees
        return {
            "Q_HEAD": a.q.stride(2),
            "K_HEAD": a.k.stride(2),
            "V_HEAD": a.v.stride(2),
            **self.sizes(),
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "NUM_I": tile.num_i,
            "EVEN": self.is_even(a.q.shape[1], a.k.shape[1], tile=tile),
            "TABLE": pieces.table is not None,
            "PACKED": self.is_packed,
            "GATHERED": self.gathered is not None,
            "CAUSAL": a.causal,
            "HAS_STATE": has_state,
            "HAS_MASK": a.key_mask is not None,
            "HAS_COEFFICIENTS": a.coefficients is not None,
            "NORMALIZE": a.normalize,
            "DROP": a.nonnegative and a.normalize,
            "CLAMP": a.nonnegative and a.normalize and (len(degrees) > 1 or degrees == (1,)),
        }

    def strides(self) -> list[int]:
        return [*self.a.q.stride()[:2], *self.a.k.stride()[:2], *self.a.v.stride()[:2]]

    def gathered_rows(self) -> list[Tensor]:
        """Order and positions; a kernel does not read what is missing, but something must be passed."""
        return [self.a.q, self.a.q] if self.gathered is None else [self.gathered.order, self.gathered.positions]


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
        a._replace(v=a.v[..., columns], state_values=None if a.state_values is None else a.state_values[..., columns])
        for columns in slices
    ]


def make_plan(a: Arguments) -> Plan:
    """How the call is cut into chunks."""
    B, T = a.k.shape[:2]
    padded = max(16, triton.next_power_of_2(a.q.shape[3]))
    head_dim = max(16, triton.next_power_of_2(a.v.shape[3]))
    sizes = tuning(a.v.dtype, padded, head_dim)
    gathered = None
    if a.cu_seqlens is None:
        num_chunks = B * triton.cdiv(T, sizes.chunk)
        if a.at is not None and a.causal:
            gathered = gather_queries(a.at, even_chunks(B, T, sizes.chunk, a.q.device))
    else:
        num_chunks = T // sizes.chunk + a.num_sequences
        if a.at is not None and a.causal:
            chunks = packed_pieces(a.cu_seqlens, T, sizes.chunk, sizes.chunk)
            gathered = gather_queries(a.at, packed_chunks(chunks, T))
        elif a.at is not None:
            gathered = gather_queries(a.at, whole_sequences(a.cu_seqlens))
    return Plan(
        a=a,
        tuning=sizes,
        layout=Layout(a.q.shape[3], padded, tuple(a.degrees)),
        head_dim=head_dim,
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
    tile = plan.tuning.forward
    pieces = plan.query_pieces(tile.rows)
    launch(
        forward_kernel,
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
            *plan.gathered_rows(),
        ],
        [*plan.strides(), a.q.shape[1], a.k.shape[1], pieces.per_row, plan.num_heads],
        [a.scale, a.eps],
        plan.tile_constants(tile, pieces, has_state=prefix is not None)
        | {"NONNEGATIVE": a.nonnegative, "ROUNDING": _rounding(a.v.dtype)},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_registers=tile.max_registers,
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
    dq, weights, factors, dcoefficients = _query_grads(plan, out, normalizer, dout, coefficients=coefficients)
    suffix, total = _query_states(plan, factors, dout, weights, dsums)
    dk, dv = _key_grads(plan, normalizer, dout, weights, suffix)
    dstate = None
    if total is not None:
        dstate = plan.layout.to_square_transposed(_with_moments(plan, total))
    return Grads(dq, dk, dv, dcoefficients, dstate)


def _query_grads(
    plan: Plan, out: Tensor, normalizer: Tensor, dout: Tensor, *, coefficients: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of the queries and of each normaliser, 1 / normaliser where the state counts, and the coefficients'."""
    a, tile = plan.a, plan.tuning.query_grads
    pieces = plan.query_pieces(tile.rows)
    prefix, _ = _key_states(plan, need_total=False)
    dq = torch.empty_like(a.q, memory_format=torch.contiguous_format)
    weights, factors = torch.empty_like(normalizer), torch.empty_like(normalizer)
    partial = None
    if coefficients:
        partial = a.q.new_zeros(pieces.count, plan.num_heads, len(a.degrees), dtype=torch.float32)
    launch(
        query_grads_kernel,
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
            *plan.gathered_rows(),
        ],
        [*plan.strides(), a.q.shape[1], a.k.shape[1], pieces.per_row, plan.num_heads],
        [a.scale],
        plan.tile_constants(tile, pieces, has_state=prefix is not None) | {"COEFFICIENT_GRADS": coefficients},
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_registers=tile.max_registers,
    )
    return dq, weights, factors, None if partial is None else _sum_by_sequence(plan, partial, pieces)


def _key_grads(
    plan: Plan, normalizer: Tensor, dout: Tensor, weights: Tensor, suffix: States | None
) -> tuple[Tensor, Tensor]:
    a, tile = plan.a, plan.tuning.key_grads
    pieces = plan.key_pieces(tile.rows)
    dk = torch.empty_like(a.k, memory_format=torch.contiguous_format)
    dv = torch.empty_like(a.v, memory_format=torch.contiguous_format)
    launch(
        key_grads_kernel,
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
            _or(pieces.table, a.q),
            *plan.gathered_rows(),
            a.q if plan.gathered is None else plan.gathered.borders,
        ],
        [*plan.strides(), a.q.shape[1], a.k.shape[1], pieces.per_row, plan.num_key_heads],
        [a.scale],
        plan.tile_constants(tile, pieces, has_state=suffix is not None),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_registers=tile.max_registers,
    )
    return dk, dv


# ---- States ----


def _key_states(plan: Plan, *, need_total: bool) -> tuple[States | None, Tensor | None]:
    """Σ φ(k)vᵀ before each chunk (of whole sequences, if not causal), and over all of these keys."""
    a = plan.a
    initial = None
    if a.state_values is not None and a.state_normalizer is not None:
        values = plan.layout.to_square(a.state_values)
        moments = plan.layout.to_square(a.state_normalizer[..., None])
        initial = _padded(plan, values), moments[..., 0].contiguous()
    has_past = not a.causal or initial is not None or a.k.shape[1] > plan.tuning.chunk
    if not has_past and not need_total:
        return None, None
    return _states(plan, a.k, a.v, initial, of_queries=False, need_prefix=has_past, need_total=need_total)


def _query_states(
    plan: Plan, factors: Tensor, dout: Tensor, weights: Tensor, dsums: Tensor | None
) -> tuple[States | None, Tensor | None]:
    """Σ φ(q)·(dout / normaliser)ᵀ after each chunk plus the sums' own gradient, and over all of these queries."""
    a = plan.a
    initial = None
    if dsums is not None:
        square = plan.layout.to_packed_transposed(dsums)
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
        factors=factors,
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
    factors: Tensor | None = None,
    weights: Tensor | None = None,
    of_queries: bool,
    need_prefix: bool,
    need_total: bool,
) -> tuple[States | None, Tensor | None]:
    a, tile, rows, gathered = plan.a, plan.tuning.states, plan.layout.num_rows, plan.gathered if of_queries else None
    by_chunk = gathered is not None and a.causal
    row_length = a.k.shape[1] if a.causal else x.shape[1]  # causal segments are made of chunks, i.e. of keys
    segment = _segment_length(plan, row_length)
    if gathered is not None and not by_chunk:
        segments = gathered.pieces(segment)
    elif a.cu_seqlens is not None:
        segments = packed_pieces(a.cu_seqlens, row_length, segment, plan.tuning.chunk)
    else:
        segments = even_pieces(x.shape[0], row_length, segment)
    several = row_length > segment
    write_prefix = need_prefix and a.causal
    partial = x.new_empty(0, dtype=torch.float32)
    write_total = several or need_total or not write_prefix
    if write_total:
        partial = x.new_empty(segments.count, plan.num_key_heads, plan.width, dtype=torch.float32)
    prefix = None
    if write_prefix:
        shape = (plan.num_chunks, plan.num_key_heads, rows)
        prefix = x.new_empty(*shape, plan.head_dim, dtype=plan.operand), x.new_empty(shape, dtype=torch.float32)

    launch(
        states_kernel,
        segments.count * plan.num_key_heads * (_feature_groups(plan) + 1),
        [
            x,
            v,
            _or(a.key_mask, x),
            _or(factors, partial),
            _or(weights, partial),
            _or(a.coefficients, partial),
            x if gathered is None else gathered.order,
            x if gathered is None else gathered.borders,
            _or(segments.table, x),
            *(initial or (partial, partial)),
            partial,
            *(prefix or (partial, partial)),
        ],
        [*x.stride()[:2], *v.stride()[:2], x.shape[1], row_length, segments.per_row, plan.num_key_heads],
        [a.scale],
        {
            "X_HEAD": x.stride(2),
            "V_HEAD": v.stride(2),
            **plan.sizes(),
            "GROUP": x.shape[2] // plan.num_key_heads,
            "SEGMENT": segment,
            "ROWS": tile.rows,
            "NUM_I": tile.num_i,
            "EVEN": plan.is_even(row_length, tile=tile),
            "TABLE": segments.table is not None,
            "PACKED": plan.is_packed,
            "GATHERED": gathered is not None,
            "BY_CHUNK": by_chunk,
            "OF_QUERIES": of_queries,
            "HAS_MASK": a.key_mask is not None and not of_queries,
            "HAS_COEFFICIENTS": a.coefficients is not None,
            "NORMALIZE": a.normalize,
            "HAS_INITIAL": initial is not None,
            "WRITE_TOTAL": write_total,
            "WRITE_PREFIX": write_prefix,
        },
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        max_registers=tile.max_registers,
    )

    total = None
    if write_total:
        total = _sum_segments(plan, partial, segments, reverse=of_queries, write_prefix=several and write_prefix)
    if several and prefix is not None:
        _shift(plan, partial, prefix, segments, segment, row_length)
    if need_prefix and not a.causal:
        assert total is not None
        prefix = _as_states(plan, total, initial)
    return prefix, total if need_total else None


def _feature_groups(plan: Plan) -> int:
    """The number of programs that share the features of degree two of one segment."""
    return plan.layout.padded // plan.tuning.states.num_i if 2 in plan.a.degrees else 0


def _segment_length(plan: Plan, row_length: int) -> int:
    """As few segments as give every multiprocessor something to do: each costs a state, and several a second walk."""
    sizes = plan.tuning
    chunks = triton.cdiv(row_length, sizes.chunk)
    programs = plan.num_key_heads * (_feature_groups(plan) + 1) * (1 if plan.is_packed else plan.a.num_sequences)
    if programs >= sizes.enough_programs:
        return sizes.chunk * triton.next_power_of_2(chunks)
    segment = max(1, chunks * programs // sizes.wanted_programs)
    return sizes.chunk * (1 << segment.bit_length() - 1)


def _sum_segments(plan: Plan, partial: Tensor, segments: Pieces, *, reverse: bool, write_prefix: bool) -> Tensor:
    if segments.table is None and segments.per_row == 1 and not write_prefix:
        return partial
    total = partial.new_empty(plan.a.num_sequences, plan.num_key_heads, plan.width)
    block = 128
    launch(
        segment_scan_kernel,
        plan.a.num_sequences * plan.num_key_heads * triton.cdiv(plan.width, block),
        [partial, total, _or(segments.first_piece, partial)],
        [segments.per_row, plan.num_key_heads],
        [],
        {
            "WIDTH": plan.width,
            "BLOCK": block,
            "SEGMENTS": 32,
            "TABLE": segments.table is not None,
            "REVERSE": reverse,
            "WRITE_PREFIX": write_prefix,
        },
        num_warps=4,
        num_stages=1,
    )
    return total


def _shift(plan: Plan, partial: Tensor, prefix: States, segments: Pieces, segment: int, row_length: int) -> None:
    """States within segments become states within sequences."""
    block = 1024
    rows = plan.layout.num_rows
    blocks = triton.cdiv(rows * plan.head_dim, block) + triton.cdiv(rows, block)
    launch(
        shift_kernel,
        segments.count * plan.num_key_heads * blocks,
        [partial, *prefix, _or(segments.table, partial)],
        [row_length, segments.per_row, plan.num_key_heads],
        [],
        {
            "FEATURES": rows,
            "DP": plan.head_dim,
            "SEGMENT": segment,
            "CHUNK": plan.tuning.chunk,
            "BLOCK": block,
            "TABLE": segments.table is not None,
        },
        num_warps=4,
        num_stages=2,
    )


def _as_states(plan: Plan, total: Tensor, initial: States | None) -> States:
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
    return torch.cat([values[..., : plan.a.v.shape[3]], total[..., rows * head_dim :, None]], dim=-1)


def _padded(plan: Plan, values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values, (0, plan.head_dim - values.shape[-1])).contiguous()


def _sum_by_sequence(plan: Plan, partial: Tensor, tiles: Pieces) -> Tensor:
    """Σ over the tiles of a sequence; as a matrix product, since atomic additions come in any order."""
    if tiles.table is None:
        return partial.unflatten(0, (-1, tiles.per_row)).sum(dim=1)
    sequences = torch.arange(plan.a.num_sequences, device=partial.device)
    is_mine = tiles.table[:, 0] == sequences[:, None]
    return (is_mine.double() @ partial.double().flatten(1)).float().unflatten(1, partial.shape[1:])


# ---- Small things ----


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A kernel does not read a missing argument, but something must be passed."""
    return other if tensor is None else tensor


def _allows_tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def _precision(dtype: torch.dtype) -> str:
    """For operands that are float32: those of float16 inputs too, for squares of them are beyond its range."""
    return "tf32" if dtype == torch.bfloat16 or _allows_tf32() else "tf32x3"


def _rounding(dtype: torch.dtype) -> float:
    """What of the state's part of the normaliser counts as zero, relative to the terms it is the sum of.

    The numerators are that imprecise: the quotient would be rounding error divided by rounding error.
    """
    if dtype == torch.bfloat16:
        return 2.0**-11
    return 2.0**-14 if _allows_tf32() else rounding(torch.float32)
