"""Kernel attention in linear time, in plain torch: quadratic inside chunks, a running state between them.

With s = scale · qᵀk and sim = Σ c_d s^d = φ(q)·φ(k), the sum over keys splits at the border of i's chunk::

    Σ_{j<=i} sim(q_i, k_j) v_j  =  φ(q_i)·S + Σ_{j<=i in the chunk} sim(q_i, k_j) v_j,   S = Σ_{j before it} φ(k_j) v_jᵀ

Chunks are handled a block at a time, large batches part by part, and features exist for one block only, in both
directions: memory is linear in T with a small constant. The backward pass walks the blocks in reverse. It needs the
state at the start of each block, summed again from the keys, and carries the gradient of the state from block to block.

This file works on one batch of equally long sequences; `rebased.ops.packing` cuts packed ones into such batches.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rebased.ops.blocks import Block, all_through_state, key_blocks, parts, query_blocks, tiles_of
from rebased.ops.expansion import contract, expand
from rebased.ops.problem import Part, Problem, contiguous
from rebased.ops.scan import scan, scan_backward
from rebased.ops.tile_attention import TileInputs, attend, attend_backward, normalizers
from rebased.ops.tiles import DenseTiles, Tiles


@dataclass(frozen=True)
class Grads:
    """What the backward pass writes, each place once."""

    q: Float[Tensor, "B P H F"]
    k: Float[Tensor, "B T Hk F"]
    v: Float[Tensor, "B T Hk D"]
    coefficients: Float[Tensor, "B P H terms"] | None
    """Of each query's own copy of the coefficients."""
    state: Float[Tensor, "B Hk E D1"] | None

    def part(self, part: Part) -> "Grads":
        """Views of some of the sequences' and heads' gradients."""
        return Grads(
            part.of_queries(self.q),
            part.of_keys(self.k),
            part.of_keys(self.v),
            None if self.coefficients is None else part.of_queries(self.coefficients),
            None if self.state is None else self.state[part.batch, part.key_heads],
        )


def forward(
    p: Problem, *, return_sums: bool
) -> tuple[Float[Tensor, "B P H D"], Float[Tensor, "B P H"], Float[Tensor, "B Hk E D1"] | None]:
    """Output, normaliser (see `normalizers`) and, if asked for, Σ φ(k)vᵀ over these keys."""
    out = p.v.new_zeros(*p.q.shape[:3], p.v.shape[-1])
    normalizer = p.q.new_ones(*p.q.shape[:3], 1, dtype=p.compute_dtype)
    sums = p.q.new_zeros(p.sums_shape, dtype=p.compute_dtype) if return_sums else None
    for part in parts(p):
        into = _Results(
            part.of_queries(out),
            part.of_queries(normalizer),
            None if sums is None else sums[part.batch, part.key_heads],
        )
        walk = _forward_through_state if all_through_state(p) else _forward_by_chunks
        walk(p.part(part), into)
    return out, normalizer[..., 0], sums


def backward(
    p: Problem,
    out: Float[Tensor, "B P H D"],
    normalizer: Float[Tensor, "B P H"],
    dout: Float[Tensor, "B P H D"],
    dsums: Float[Tensor, "B Hk E D1"] | None,
    *,
    coefficients: bool,
) -> Grads:
    """All gradients, given those of the output and of the returned sums; the coefficients' only if asked for."""
    shape = (*p.q.shape[:3], len(p.degrees))
    all_grads = Grads(
        torch.zeros_like(p.q, memory_format=torch.contiguous_format),
        torch.zeros_like(p.k, memory_format=torch.contiguous_format),
        torch.zeros_like(p.v, memory_format=torch.contiguous_format),
        p.q.new_zeros(shape, dtype=p.compute_dtype) if coefficients else None,
        None if p.state is None else torch.zeros_like(p.state),
    )
    for part in parts(p):
        results = _Results(part.of_queries(out), part.of_queries(normalizer)[..., None], None)
        walk = _backward_through_state if all_through_state(p) else _backward_by_chunks
        into = all_grads.part(part)
        part_dsums = None if dsums is None else dsums[part.batch, part.key_heads]
        dstate = walk(p.part(part), results, part.of_queries(dout), part_dsums, into)
        if into.state is not None and dstate is not None:
            into.state.copy_(dstate)
    if p.key_mask is not None:
        all_grads.k.masked_fill_(~p.key_mask[..., None, None], 0)
        all_grads.v.masked_fill_(~p.key_mask[..., None, None], 0)
    return all_grads


@dataclass(frozen=True)
class _Results:
    """What the forward pass writes, each place once."""

    out: Tensor
    normalizer: Tensor
    sums: Tensor | None


# ---- The two walks over a problem's blocks, forward and backward ----


def _forward_by_chunks(p: Problem, into: _Results) -> None:
    state = p.state
    for block in key_blocks(p):
        keys, values = _load_keys(p, block)
        prefix = state
        if block.num_chunks > 1 or into.sums is not None or not block.is_last:
            prefix, state = _advance(p, block, state, keys, values, into.sums)
        tiles = tiles_of(p, block)
        if tiles is not None:
            _forward_tiles(p, tiles, _tile_inputs(p, tiles, prefix, keys, values, causal=p.causal), into)


def _forward_through_state(p: Problem, into: _Results) -> None:
    state = p.state
    for block in key_blocks(p):
        _, state = _advance(p, block, state, *_load_keys(p, block), into.sums)
    for tiles in query_blocks(p):
        _forward_tiles(p, tiles, _tile_inputs(p, tiles, state), into)


def _advance(
    p: Problem, block: Block, state: Tensor | None, keys: Tensor, values: Tensor, sums: Tensor | None = None
) -> tuple[Tensor | None, Tensor]:
    """The states before the block's chunks and after the last, and the block's part of ``sums``."""
    increments = expand(keys, p.degrees) @ values
    if sums is not None:
        sums += increments.unflatten(0, (-1, block.num_chunks)).sum(dim=1)
    return scan(state, increments, block.num_chunks)


def _backward_by_chunks(
    p: Problem, results: _Results, dout: Tensor, dsums: Tensor | None, into: Grads
) -> Tensor | None:
    dstate = None
    blocks = key_blocks(p)
    starts: list[Tensor | None] = []
    state = p.state
    for block in blocks:
        starts.append(state)
        if not block.is_last:
            _, state = _advance(p, block, state, *_load_keys(p, block))
    for block, start in zip(reversed(blocks), reversed(starts), strict=True):
        keys, values = _load_keys(p, block)
        has_increments = block.num_chunks > 1 or dstate is not None or dsums is not None
        features = expand(keys, p.degrees) if has_increments else None
        prefix = start
        if block.num_chunks > 1:
            assert features is not None
            prefix, _ = scan(start, features @ values, block.num_chunks)
        dkeys, dvalues, dprefix = torch.zeros_like(keys), torch.zeros_like(values), None
        tiles = tiles_of(p, block)
        if tiles is not None:
            inputs = _tile_inputs(p, tiles, prefix, keys, values, causal=p.causal)
            dnumerators = _dnumerators(p, tiles, inputs, results, dout)
            tile = attend_backward(inputs, dnumerators, coefficients=into.coefficients is not None)
            _store_query_grads(p, tiles, tile.q, tile.coefficients, into)
            assert tile.keys is not None
            assert tile.values is not None
            dkeys = _sum_tiles(tiles, tile.keys, dkeys)
            dvalues = _sum_tiles(tiles, tile.values, dvalues)
            if tile.state is not None:
                assert prefix is not None
                dprefix = _sum_tiles(tiles, tile.state, torch.zeros_like(prefix))
        dincrements, dstate = scan_backward(dstate, dprefix, block.num_chunks)
        if dsums is not None:
            every_chunk = dsums.repeat_interleave(block.num_chunks, dim=0)
            dincrements = every_chunk if dincrements is None else dincrements + every_chunk
        if dincrements is not None:
            assert features is not None
            dvalues = dvalues + features.mT @ dincrements
            dkeys = dkeys + contract(keys, dincrements @ values.mT, p.degrees)[0]
        _store_key_grads(block, dkeys, dvalues, into)
    return dstate


def _backward_through_state(p: Problem, results: _Results, dout: Tensor, dsums: Tensor | None, into: Grads) -> Tensor:
    state = p.state
    blocks = key_blocks(p)
    for block in blocks:
        _, state = _advance(p, block, state, *_load_keys(p, block))
    dstate = p.q.new_zeros(p.sums_shape, dtype=p.compute_dtype)
    for tiles in query_blocks(p):
        inputs = _tile_inputs(p, tiles, state)
        dnumerators = _dnumerators(p, tiles, inputs, results, dout)
        tile = attend_backward(inputs, dnumerators, coefficients=into.coefficients is not None)
        _store_query_grads(p, tiles, tile.q, tile.coefficients, into)
        assert tile.state is not None
        dstate += tile.state
    for block in blocks:
        keys, values = _load_keys(p, block)
        dincrements = (dstate if dsums is None else dstate + dsums).repeat_interleave(block.num_chunks, dim=0)
        dvalues = expand(keys, p.degrees).mT @ dincrements
        dkeys, _ = contract(keys, dincrements @ values.mT, p.degrees)
        _store_key_grads(block, dkeys, dvalues, into)
    return dstate


# ---- Loading and storing ----


def _tile_inputs(
    p: Problem,
    tiles: Tiles,
    state: Tensor | None,
    keys: Tensor | None = None,
    values: Tensor | None = None,
    *,
    causal: bool = False,
) -> TileInputs:
    q = p.columns(tiles.load(p.q)) * p.scale
    coefficients = None
    if p.coefficients is not None:
        coefficients = p.columns(tiles.load(p.coefficients[:, None].expand(-1, p.q.shape[1], -1, -1)))
    visible = None
    if causal and keys is not None:
        visible = tiles.visible(keys.shape[-1]).repeat(1, p.group, 1)[:, None]  # (#X, 1, R, C)
    pick = tiles.chunk_of_tile
    if pick is not None:
        state, keys, values = (None if x is None else x[pick] for x in (state, keys, values))
    return TileInputs(
        degrees=p.degrees,
        q=q,
        coefficients=coefficients,
        state=state,
        keys=keys,
        values=values,
        visible=visible,
        nonnegative=p.nonnegative and p.normalize,
    )


def _forward_tiles(p: Problem, tiles: Tiles, inputs: TileInputs, into: _Results) -> None:
    numerators = attend(inputs)
    rows = numerators[..., :-1]
    if p.normalize:
        divisor = normalizers(numerators, eps=p.eps, nonnegative=p.nonnegative)
        rows = rows / divisor
        tiles.store(p.per_query(divisor), into.normalizer)
    tiles.store(p.per_query(rows).to(into.out.dtype), into.out)


def _dnumerators(p: Problem, tiles: Tiles, inputs: TileInputs, results: _Results, dout: Tensor) -> Tensor:
    """The gradient of the numerators and, in the last column, of the normaliser.

    The latter takes the output, of which 16 bits are too few where it nearly cancels a value: there it is computed
    once more.
    """
    drows = p.rows(tiles.load(dout))
    if not p.normalize:
        return torch.cat([drows, torch.zeros_like(drows[..., :1])], dim=-1)
    divisor = p.rows(tiles.load(results.normalizer, fill=1.0))
    is_exact = results.out.dtype == p.compute_dtype
    out = p.rows(tiles.load(results.out)) if is_exact else attend(inputs)[..., :-1] / divisor
    drows = drows / divisor
    dnormalizer = -(drows * out).sum(dim=-1, keepdim=True)
    return torch.cat([drows, dnormalizer], dim=-1)


def _load_keys(p: Problem, block: Block) -> tuple[Float[Tensor, "X Hk F C"], Float[Tensor, "X Hk C D1"]]:
    """A block's keys as columns, its values with their ones; masked rows are zero in both."""
    chunks = DenseTiles(block.start, block.num_chunks, block.chunk_size, p.k.device)
    k, v = chunks.load(p.k), chunks.load(p.v)
    if p.key_mask is not None:
        mask = chunks.load(p.key_mask[..., None, None])
        k, v = k.where(mask, 0), v.where(mask, 0)
        ones = mask.to(p.compute_dtype).transpose(1, 2).expand(-1, v.shape[2], -1, -1)
    else:
        ones = v.new_ones(1, dtype=p.compute_dtype).expand(v.shape[0], v.shape[2], v.shape[1], 1)
    keys = contiguous(k.permute(0, 2, 3, 1), p.compute_dtype)
    values = torch.cat([v.transpose(1, 2).to(p.compute_dtype), ones], dim=-1)
    return keys, values


def _store_query_grads(p: Problem, tiles: Tiles, dq: Tensor, dcoefficients: Tensor | None, into: Grads) -> None:
    tiles.store(p.per_query((dq * p.scale).mT).to(into.q.dtype), into.q)
    if dcoefficients is not None and into.coefficients is not None:
        tiles.store(p.per_query(dcoefficients.mT), into.coefficients)


def _store_key_grads(block: Block, dkeys: Tensor, dvalues: Tensor, into: Grads) -> None:
    chunks = DenseTiles(block.start, block.num_chunks, block.chunk_size, dkeys.device)
    chunks.store(dkeys.permute(0, 3, 1, 2).to(into.k.dtype), into.k)
    chunks.store(dvalues[..., :-1].transpose(1, 2).to(into.v.dtype), into.v)


def _sum_tiles(tiles: Tiles, per_tile: Tensor, zeros: Tensor) -> Tensor:
    """Gradients of chunks from those of the tiles that read them."""
    if tiles.chunk_of_tile is None:
        return per_tile
    if per_tile.device.type == "cpu":
        return zeros.index_add_(0, tiles.chunk_of_tile, per_tile)
    # index_add_ is atomic there, and its order varies from run to run.
    return zeros.index_put_((tiles.chunk_of_tile,), per_tile, accumulate=True)
