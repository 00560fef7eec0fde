"""Kernel attention in linear time, in plain torch: quadratic inside chunks, a running state between them.

With s = scale · qᵀk and sim = Σ c_d s^d = φ(q)·φ(k), the sum over keys splits at the border of i's chunk::

    Σ_{j<=i} sim(q_i, k_j) v_j  =  φ(q_i)·S + Σ_{j in the chunk, j<=i} sim(q_i, k_j) v_j,    S = Σ_{j before} φ(k_j) v_jᵀ

Chunks are handled a block at a time, and features exist for one block only, in both directions: memory is linear in
T with a small constant. The backward pass walks the blocks in reverse. It needs the state at the start of each block,
summed again from the keys, and carries the gradient of the state from block to block.

This file works on one batch of equally long sequences; `rebased.ops.packing` cuts packed ones into such batches.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rebased.ops.expansion import contract, expand, num_features
from rebased.ops.tile_attention import TileInputs, attend, attend_backward, normalizers
from rebased.ops.tiles import DenseTiles, Tiles, gather_tiles

FEATURES_PER_BLOCK = {"cpu": 1 << 21, "cuda": 1 << 26}
"""How many numbers the features of a block may be: about a last-level cache on a CPU, many small launches' worth on
a GPU."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One call's tensors and settings, for the forward and the backward pass alike."""

    q: Float[Tensor, "B P H F"]
    k: Float[Tensor, "B T Hk F"]
    v: Float[Tensor, "B T Hk D"]
    coefficients: Float[Tensor, "B H terms"] | None
    """``None``: all ones, which saves the multiplications."""
    key_mask: Bool[Tensor, "B T"] | None
    state: Float[Tensor, "B Hk E D1"] | None
    """values and normaliser side by side, in the compute dtype."""
    at: Int[Tensor, "B P"] | None
    degrees: tuple[int, ...]
    scale: float
    eps: float
    normalize: bool
    causal: bool
    nonnegative: bool

    @property
    def compute_dtype(self) -> torch.dtype:
        return torch.float64 if self.v.dtype == torch.float64 else torch.float32

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        B, _, Hk, D = self.v.shape
        return B, Hk, num_features(self.q.shape[-1], self.degrees), D + 1


@dataclass(frozen=True)
class Grads:
    q: Float[Tensor, "B P H F"]
    k: Float[Tensor, "B T Hk F"]
    v: Float[Tensor, "B T Hk D"]
    coefficients: Float[Tensor, "B H terms"] | None
    state: Float[Tensor, "B Hk E D1"] | None


def preferred_chunk_size(num_features: int) -> int:
    """Work per token is C·(F + D) inside a chunk and E·D through the state: level where C is near E."""
    return min(max(1 << (num_features.bit_length() - 1), 64), 512)


def forward(
    p: Problem, *, return_state: bool
) -> tuple[Float[Tensor, "B P H D"], Float[Tensor, "B P H"], Float[Tensor, "B Hk E D1"] | None]:
    """Output, normaliser (see `normalizers`) and, if asked for, the state after the last key."""
    out = p.v.new_zeros(*p.q.shape[:3], p.v.shape[-1])
    normalizer = p.q.new_ones(*p.q.shape[:3], 1, dtype=p.compute_dtype)
    state = p.state
    if _all_through_state(p):
        for block in _key_blocks(p):
            keys, values = _load_keys(p, block)
            _, state = _scan(state, expand(keys, p.degrees) @ values, block.num_chunks)
        for tiles in _query_blocks(p):
            _forward_tiles(p, tiles, _tile_inputs(p, tiles, state), out, normalizer)
    else:
        for block in _key_blocks(p):
            keys, values = _load_keys(p, block)
            prefix = state
            if block.num_chunks > 1 or return_state or not block.is_last:
                prefix, state = _scan(state, expand(keys, p.degrees) @ values, block.num_chunks)
            tiles = _tiles(p, block)
            if tiles is not None:
                inputs = _tile_inputs(p, tiles, prefix, keys, values, causal=p.causal)
                _forward_tiles(p, tiles, inputs, out, normalizer)
    if return_state and state is None:
        state = p.q.new_zeros(p.state_shape, dtype=p.compute_dtype)
    return out, normalizer[..., 0], state if return_state else None


def backward(
    p: Problem,
    out: Float[Tensor, "B P H D"],
    normalizer: Float[Tensor, "B P H"],
    dout: Float[Tensor, "B P H D"],
    dstate: Float[Tensor, "B Hk E D1"] | None,
    *,
    coefficients: bool,
) -> Grads:
    """All gradients, given those of the output and of the returned state; the coefficients' only if asked for."""
    sums = _Accumulators.zeros(p, coefficients=coefficients)
    out_grads = _OutputGrads(out, normalizer[..., None], dout)
    if _all_through_state(p):
        dstate = _backward_through_state(p, out_grads, dstate, sums)
    else:
        dstate = _backward_by_chunks(p, out_grads, dstate, sums)
    dcoefficients = sums.coefficients.sum(dim=1) if sums.coefficients is not None else None
    if p.key_mask is not None:
        sums.k.masked_fill_(~p.key_mask[..., None, None], 0)
        sums.v.masked_fill_(~p.key_mask[..., None, None], 0)
    if p.state is not None and dstate is None:
        dstate = torch.zeros_like(p.state)
    return Grads(sums.q, sums.k, sums.v, dcoefficients, dstate if p.state is not None else None)


# ---- The backward pass of the two walks ----


@dataclass(frozen=True)
class _OutputGrads:
    out: Tensor
    normalizer: Tensor
    dout: Tensor


@dataclass(frozen=True)
class _Accumulators:
    """Where gradients are written, each place once."""

    q: Tensor
    k: Tensor
    v: Tensor
    coefficients: Tensor | None
    """(B, P, H, terms): summed over queries at the end, in one reduction."""

    @classmethod
    def zeros(cls, p: Problem, *, coefficients: bool) -> "_Accumulators":
        shape = (*p.q.shape[:3], len(p.degrees))
        dcoefficients = p.q.new_zeros(shape, dtype=p.compute_dtype) if coefficients else None
        return cls(torch.zeros_like(p.q), torch.zeros_like(p.k), torch.zeros_like(p.v), dcoefficients)


def _backward_by_chunks(
    p: Problem, grads: _OutputGrads, dstate: Tensor | None, sums: _Accumulators
) -> Tensor | None:
    blocks = _key_blocks(p)
    starts: list[Tensor | None] = []
    state = p.state
    for block in blocks:
        starts.append(state)
        if not block.is_last:
            keys, values = _load_keys(p, block)
            _, state = _scan(state, expand(keys, p.degrees) @ values, block.num_chunks)
    for block, start in zip(reversed(blocks), reversed(starts), strict=True):
        keys, values = _load_keys(p, block)
        features = expand(keys, p.degrees) if block.num_chunks > 1 or dstate is not None else None
        prefix = start
        if block.num_chunks > 1:
            assert features is not None
            prefix, _ = _scan(start, features @ values, block.num_chunks)
        dkeys, dvalues, dprefix = torch.zeros_like(keys), torch.zeros_like(values), None
        tiles = _tiles(p, block)
        if tiles is not None:
            inputs = _tile_inputs(p, tiles, prefix, keys, values, causal=p.causal)
            tile = attend_backward(
                inputs, _dnumerators(p, tiles, grads), coefficients=sums.coefficients is not None
            )
            _store_query_grads(p, tiles, tile.q, tile.coefficients, sums)
            assert tile.keys is not None
            assert tile.values is not None
            dkeys = _sum_tiles(tiles, tile.keys, dkeys)
            dvalues = _sum_tiles(tiles, tile.values, dvalues)
            if tile.state is not None:
                assert prefix is not None
                dprefix = _sum_tiles(tiles, tile.state, torch.zeros_like(prefix))
        dincrements, dstate = _scan_backward(dstate, dprefix, block.num_chunks)
        if dincrements is not None:
            assert features is not None
            dvalues = dvalues + features.mT @ dincrements
            dkeys = dkeys + contract(keys, dincrements @ values.mT, p.degrees)[0]
        _store_key_grads(block, dkeys, dvalues, sums)
    return dstate


def _backward_through_state(
    p: Problem, grads: _OutputGrads, dstate: Tensor | None, sums: _Accumulators
) -> Tensor:
    state = p.state
    blocks = _key_blocks(p)
    for block in blocks:
        keys, values = _load_keys(p, block)
        _, state = _scan(state, expand(keys, p.degrees) @ values, block.num_chunks)
    total = torch.zeros(p.state_shape, dtype=p.compute_dtype, device=p.q.device) if dstate is None else dstate.clone()
    for tiles in _query_blocks(p):
        inputs = _tile_inputs(p, tiles, state)
        tile = attend_backward(inputs, _dnumerators(p, tiles, grads), coefficients=sums.coefficients is not None)
        _store_query_grads(p, tiles, tile.q, tile.coefficients, sums)
        assert tile.state is not None
        total += tile.state
    for block in blocks:
        keys, values = _load_keys(p, block)
        dincrements = total.repeat_interleave(block.num_chunks, dim=0)
        dvalues = expand(keys, p.degrees).mT @ dincrements
        dkeys, _ = contract(keys, dincrements @ values.mT, p.degrees)
        _store_key_grads(block, dkeys, dvalues, sums)
    return total


# ---- Blocks of keys, tiles of queries ----


@dataclass(frozen=True)
class _Block:
    start: int
    num_chunks: int
    chunk_size: int
    is_last: bool


def _all_through_state(p: Problem) -> bool:
    """Without a causal mask, keys beyond a chunk are all summed first and queries meet nothing but the sum."""
    return not p.causal and p.k.shape[1] > preferred_chunk_size(p.state_shape[2])


def _key_blocks(p: Problem) -> list[_Block]:
    """Whole chunks, several to a block, then what is left over as a block of one shorter chunk."""
    T, chunk_size = p.k.shape[1], preferred_chunk_size(p.state_shape[2])
    chunks_per_block = _rows_per_block(p) // chunk_size or 1
    blocks: list[_Block] = []
    if p.k.shape[0] == 0:
        return blocks
    start = 0
    while start < T:
        num_chunks = min((T - start) // chunk_size, chunks_per_block)
        size = chunk_size if num_chunks else T - start
        num_chunks = num_chunks or 1
        end = start + num_chunks * size
        blocks.append(_Block(start, num_chunks, size, is_last=end == T))
        start = end
    return blocks


def _query_blocks(p: Problem) -> list[Tiles]:
    P = p.q.shape[1]
    size = _rows_per_block(p) or 1
    return [DenseTiles(start, 1, min(size, P - start), p.q.device) for start in range(0, P, size)]


def _rows_per_block(p: Problem) -> int:
    budget = FEATURES_PER_BLOCK.get(p.q.device.type, FEATURES_PER_BLOCK["cuda"])
    return budget // max(p.q.shape[0] * p.q.shape[2] * p.state_shape[2], 1)


def _tiles(p: Problem, block: _Block) -> Tiles | None:
    if not p.causal:  # one chunk holds all keys, so every query meets it
        return DenseTiles(0, 1, p.q.shape[1], p.q.device) if p.q.shape[1] else None
    if p.at is not None:
        return gather_tiles(p.at, block.start, block.num_chunks, block.chunk_size)
    return DenseTiles(block.start, block.num_chunks, block.chunk_size, p.q.device)


def _tile_inputs(
    p: Problem,
    tiles: Tiles,
    state: Tensor | None,
    keys: Tensor | None = None,
    values: Tensor | None = None,
    *,
    causal: bool = False,
) -> TileInputs:
    q = _columns(p, tiles.load(p.q)) * p.scale
    coefficients = None
    if p.coefficients is not None:
        coefficients = _columns(p, tiles.load(p.coefficients[:, None].expand(-1, p.q.shape[1], -1, -1)))
    visible = None
    if causal and keys is not None:
        group = p.q.shape[2] // p.k.shape[2]
        visible = tiles.visible(keys.shape[-1]).repeat(1, group, 1)[:, None]  # (#X, 1, R, C)
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
    )


def _forward_tiles(p: Problem, tiles: Tiles, inputs: TileInputs, out: Tensor, normalizer: Tensor) -> None:
    numerators = attend(inputs)
    rows = numerators[..., :-1]
    if p.normalize:
        divisor = normalizers(inputs, numerators, eps=p.eps, nonnegative=p.nonnegative)
        rows = rows / divisor
        tiles.store(_per_query(p, divisor), normalizer)
    tiles.store(_per_query(p, rows).to(out.dtype), out)


def _dnumerators(p: Problem, tiles: Tiles, grads: _OutputGrads) -> Tensor:
    """The gradient of the numerators and, in the last column, of the normaliser."""
    drows = _rows(p, tiles.load(grads.dout))
    if not p.normalize:
        return torch.cat([drows, torch.zeros_like(drows[..., :1])], dim=-1)
    drows = drows / _rows(p, tiles.load(grads.normalizer, fill=1.0))
    dnormalizer = -(drows * _rows(p, tiles.load(grads.out))).sum(dim=-1, keepdim=True)
    return torch.cat([drows, dnormalizer], dim=-1)


def _load_keys(p: Problem, block: _Block) -> tuple[Float[Tensor, "X Hk F C"], Float[Tensor, "X Hk C D1"]]:
    """A block's keys as columns, its values with their ones; masked rows are zero in both."""
    chunks = DenseTiles(block.start, block.num_chunks, block.chunk_size, p.k.device)
    k, v = chunks.load(p.k), chunks.load(p.v)
    if p.key_mask is not None:
        mask = chunks.load(p.key_mask[..., None, None])
        k, v = k.where(mask, 0), v.where(mask, 0)
        ones = mask.to(p.compute_dtype).transpose(1, 2).expand(-1, v.shape[2], -1, -1)
    else:
        ones = v.new_ones(1, dtype=p.compute_dtype).expand(v.shape[0], v.shape[2], v.shape[1], 1)
    keys = _contiguous(k.permute(0, 2, 3, 1), p.compute_dtype)
    values = torch.cat([v.transpose(1, 2).to(p.compute_dtype), ones], dim=-1)
    return keys, values


def _store_query_grads(
    p: Problem, tiles: Tiles, dq: Tensor, dcoefficients: Tensor | None, sums: _Accumulators
) -> None:
    tiles.store(_per_query(p, (dq * p.scale).mT).to(sums.q.dtype), sums.q)
    if dcoefficients is not None and sums.coefficients is not None:
        tiles.store(_per_query(p, dcoefficients.mT), sums.coefficients)


def _store_key_grads(block: _Block, dkeys: Tensor, dvalues: Tensor, sums: _Accumulators) -> None:
    chunks = DenseTiles(block.start, block.num_chunks, block.chunk_size, dkeys.device)
    chunks.store(dkeys.permute(0, 3, 1, 2).to(sums.k.dtype), sums.k)
    chunks.store(dvalues[..., :-1].transpose(1, 2).to(sums.v.dtype), sums.v)


def _sum_tiles(tiles: Tiles, per_tile: Tensor, zeros: Tensor) -> Tensor:
    """Gradients of chunks from those of the tiles that read them."""
    return per_tile if tiles.chunk_of_tile is None else zeros.index_add_(0, tiles.chunk_of_tile, per_tile)


# ---- Sums over chunks ----


def _scan(
    state: Float[Tensor, "B Hk E D1"] | None, increments: Float[Tensor, "X Hk E D1"], num_chunks: int
) -> tuple[Float[Tensor, "X Hk E D1"] | None, Float[Tensor, "B Hk E D1"]]:
    """The state before each chunk, and after the last. Before the very first chunk it is ``None`` where that is all
    there is, zero among others."""
    if num_chunks == 1:
        return state, increments if state is None else state + increments
    sums = increments.unflatten(0, (-1, num_chunks)).cumsum(dim=1)
    first = torch.zeros_like(sums[:, :1])
    if state is not None:
        first = state[:, None]
        sums = sums + first
    return torch.cat([first, sums[:, :-1]], dim=1).flatten(0, 1), sums[:, -1]


def _scan_backward(
    dstate: Float[Tensor, "B Hk E D1"] | None, dprefix: Float[Tensor, "X Hk E D1"] | None, num_chunks: int
) -> tuple[Float[Tensor, "X Hk E D1"] | None, Float[Tensor, "B Hk E D1"] | None]:
    """From the gradients of `_scan`'s two results, those of the increments and of the first state."""
    if dprefix is None:
        return None if dstate is None else dstate.repeat_interleave(num_chunks, dim=0), dstate
    if num_chunks == 1:
        return dstate, dprefix if dstate is None else dstate + dprefix
    suffix = dprefix.unflatten(0, (-1, num_chunks)).flip(1).cumsum(dim=1).flip(1)
    last = torch.zeros_like(suffix[:, :1])
    if dstate is not None:
        last = dstate[:, None]
        suffix = suffix + last
    return torch.cat([suffix[:, 1:], last], dim=1).flatten(0, 1), suffix[:, 0]


# ---- Layouts: (X, rows, H, W) as queries come, (X, Hk, R, W) as rows, (X, Hk, W, R) as columns; R = G · rows ----


def _rows(p: Problem, x: Tensor) -> Tensor:
    x = x.unflatten(2, (p.k.shape[2], -1)).permute(0, 2, 3, 1, 4)
    return _contiguous(x, p.compute_dtype).flatten(2, 3)


def _columns(p: Problem, x: Tensor) -> Tensor:
    x = x.unflatten(2, (p.k.shape[2], -1)).permute(0, 2, 4, 3, 1)
    return _contiguous(x, p.compute_dtype).flatten(3, 4)


def _per_query(p: Problem, rows: Tensor) -> Tensor:
    group = p.q.shape[2] // p.k.shape[2]
    return rows.unflatten(2, (group, -1)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _contiguous(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).contiguous() if x.dtype == dtype else x.to(dtype, memory_format=torch.contiguous_format)
