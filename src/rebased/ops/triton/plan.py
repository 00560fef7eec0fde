"""What a call's sizes and settings decide: tiles, chunks, segments, and the kernels compiled for them.

A plan holds no tensors and is made once for calls that are alike.
"""

import math
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from rebased.ops.arguments import Arguments
from rebased.ops.blocks import pays_directly
from rebased.ops.dtypes import rounding
from rebased.ops.triton.few_queries_grads import few_queries_grads_kernel
from rebased.ops.triton.forward import forward_kernel
from rebased.ops.triton.key_grads import key_grads_kernel
from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.layout import Layout
from rebased.ops.triton.precision import allows_tf32
from rebased.ops.triton.query_grads import query_grads_kernel
from rebased.ops.triton.states import segment_scan_kernel, shift_kernel, states_kernel
from rebased.ops.triton.tuning import Tile, for_few_queries, tuning

SHORT_WALK = 512
"""Keys that a program may walk alone though most of the card is idle: one more kernel would take longer."""
SCAN_BLOCK = 128
"""Numbers of a state that a program sums at a time."""
SHIFT_BLOCK = 1024
"""Numbers of each state that a program adds to: 16 bytes a thread in bfloat16."""
SHIFT_CHUNKS = 4
"""States that a program adds to at a time."""


class Signature(NamedTuple):
    """All of a call that is not in its tensors' memory."""

    dtype: torch.dtype
    q_shape: torch.Size
    k_shape: torch.Size
    head_dim: int
    q_strides: tuple[int, ...]
    k_strides: tuple[int, ...]
    v_strides: tuple[int, ...]
    num_sequences: int
    is_packed: bool
    has_positions: bool
    has_mask: bool
    has_coefficients: bool
    degrees: tuple[int, ...]
    normalize: bool
    causal: bool
    nonnegative: bool
    sum_of_squares: bool
    allows_tf32: bool


def plan_of(a: Arguments) -> "Plan":
    """The plan of a call, from the calls before it if there was one like it."""
    return _make_plan(
        Signature(
            a.v.dtype,
            a.q.shape,
            a.k.shape,
            a.v.shape[3],
            a.q.stride(),
            a.k.stride(),
            a.v.stride(),
            a.num_sequences,
            a.cu_seqlens is not None,
            a.at is not None,
            a.key_mask is not None,
            a.coefficients is not None,
            tuple(a.degrees),
            a.normalize,
            a.causal,
            a.nonnegative,
            a.sum_of_squares,
            a.v.dtype != torch.bfloat16 and allows_tf32(),
        )
    )


def _alignment(stride: int) -> int:
    """The largest power of two up to 16 that divides a stride: compiled in, unlike the stride itself."""
    return math.gcd(stride, 16)


@lru_cache(maxsize=512)
def _make_plan(signature: Signature) -> "Plan":
    return Plan(signature)


class Plan:
    """Sizes are in tokens; FP and DP in kernels are ``layout.padded`` and ``head_dim``."""

    def __init__(self, signature: Signature) -> None:
        self.s = signature
        self.num_heads, self.num_key_heads = signature.q_shape[2], signature.k_shape[2]
        padded = max(16, triton.next_power_of_2(signature.q_shape[3]))
        self.layout = Layout(signature.q_shape[3], padded, signature.degrees)
        self.head_dim = max(16, triton.next_power_of_2(signature.head_dim))
        self.tuning = tuning(signature.dtype, padded, self.head_dim)
        if self._is_direct:
            self.tuning = for_few_queries(self.tuning, signature.q_shape[1], signature.k_shape[1])
        self.operand = torch.bfloat16 if signature.dtype == torch.bfloat16 else torch.float32
        self.strides = [*signature.q_strides[:3], *signature.k_strides[:3], *signature.v_strides[:3]]
        self.width = self.layout.num_rows * (self.head_dim + 1)
        """Of a state with its moments, as one row of float32 numbers."""
        self.scan_blocks = triton.cdiv(self.width, SCAN_BLOCK)
        self.shift_blocks = sum(triton.cdiv(self.layout.num_rows * width, SHIFT_BLOCK) for width in (self.head_dim, 1))
        self._segments: dict[int, int] = {}
        self._launchers: dict[Any, Launcher] = {}

    @property
    def _is_direct(self) -> bool:
        """Whether so few queries are asked for that meeting all keys costs them less than a state made of the keys."""
        queries = self.s.q_shape[1] * self.num_heads // self.num_key_heads
        sizes = self.layout.padded, self.layout.num_rows, self.head_dim
        is_possible = self.s.has_positions and self.s.causal and not self.s.is_packed
        return is_possible and pays_directly(queries, self.s.k_shape[1], *sizes)

    @cached_property
    def walks_once(self) -> bool:
        """Whether one program for each head has all of its queries and makes all gradients; without states."""
        num_queries, most = self.s.q_shape[1], self.tuning.few_queries
        is_possible = self._is_direct and num_queries <= most and self.num_heads == self.num_key_heads
        is_short, num_programs = self.s.k_shape[1] <= SHORT_WALK, self.s.q_shape[0] * self.num_heads
        return is_possible and (is_short or num_programs >= self.tuning.enough_programs)

    @cached_property
    def is_gathered(self) -> bool:
        """Whether queries are sorted by chunk; without causality they need be only where sequences are packed."""
        return self.s.has_positions and (self.s.causal or self.s.is_packed)

    def num_slots(self, length: int, *, own_edges: bool) -> int:
        """How many states before chunks or segments of this length there is room for, as `slot_of` numbers them."""
        B, T = self.s.k_shape[:2]
        if self.s.is_packed:
            return T // length + 1 + (self.s.num_sequences if own_edges else 0)
        return B * -(-T // length)  # asked for six times a call, and triton.cdiv takes 4 µs on the host

    @cached_property
    def has_several_chunks(self) -> bool:
        """Whether a sequence may be longer than a chunk, so that there are states between chunks."""
        return not self.s.causal or self.s.k_shape[1] > self.tuning.chunk

    @cached_property
    def is_segmented(self) -> bool:
        """Whether states after chunks are sums over their segment alone."""
        return self.s.causal and self.s.k_shape[1] > self.segment(self.s.k_shape[1])

    @cached_property
    def segments_per_row(self) -> int:
        return triton.cdiv(self.s.k_shape[1], self.segment(self.s.k_shape[1]))

    @cached_property
    def feature_groups(self) -> int:
        """The number of programs that share the features of degree two of one segment."""
        return self.layout.padded // self.tuning.states.num_i if 2 in self.s.degrees else 0

    @cached_property
    def key_grads_tile(self) -> Tile:
        tile = self.tuning.segmented_key_grads if self.is_segmented else None
        return tile or self.tuning.key_grads

    def segmented_length(self, *, of_queries: bool) -> int:
        """Of the rows that segments are cut from: causal ones are made of chunks, i.e. of keys."""
        return self.s.q_shape[1] if of_queries and not self.s.causal else self.s.k_shape[1]

    def segment(self, row_length: int) -> int:
        """As few segments as give every multiprocessor something to do: each costs a state."""
        if row_length not in self._segments:
            self._segments[row_length] = self._choose_segment(row_length)
        return self._segments[row_length]

    def _choose_segment(self, row_length: int) -> int:
        chunks = triton.cdiv(row_length, self.tuning.chunk)
        rows = 1 if self.s.is_packed else self.s.num_sequences
        programs = self.num_key_heads * (self.feature_groups + 1) * rows
        if programs >= self.tuning.enough_programs:
            return self.tuning.chunk * triton.next_power_of_2(chunks)
        length = max(1, chunks * programs // self.tuning.wanted_programs)
        return self.tuning.chunk * (1 << length.bit_length() - 1)

    # ---- The kernels, each with its constants ----

    def forward(self, *, has_state: bool, has_initial: bool) -> Launcher:
        tile = self.tuning.forward

        def constants() -> dict[str, Any]:
            return self._tile_constants(tile, self._queries_have_table, has_state, has_initial) | {
                "NONNEGATIVE": self.s.nonnegative,
                "ROUNDING": self._rounding,
            }

        return self._launcher(("forward", has_state, has_initial), forward_kernel, constants, tile)

    def query_grads(self, *, has_state: bool, has_initial: bool, coefficients: bool) -> Launcher:
        tile = self.tuning.query_grads

        def constants() -> dict[str, Any]:
            return self._tile_constants(tile, self._queries_have_table, has_state, has_initial) | {
                "COEFFICIENT_GRADS": coefficients
            }

        key = ("query_grads", has_state, has_initial, coefficients)
        return self._launcher(key, query_grads_kernel, constants, tile)

    def key_grads(self, *, has_state: bool, has_initial: bool) -> Launcher:
        tile = self.key_grads_tile

        def constants() -> dict[str, Any]:
            return self._tile_constants(tile, self.s.is_packed, has_state, has_initial) | {
                "SEGMENT": self.segment(self.s.k_shape[1]),
                "SEGMENTED": has_state and self.is_segmented,
            }

        return self._launcher(("key_grads", has_state, has_initial), key_grads_kernel, constants, tile)

    def few_queries_grads(self, *, coefficients: bool) -> Launcher:
        tile = self.tuning.few_queries_grads

        def constants() -> dict[str, Any]:
            found = self._tile_constants(tile, has_table=False, has_state=False, has_initial=False) | {
                "EVEN_QUERIES": self.s.q_shape[1] == tile.rows,
                "EVEN_KEYS": self.s.k_shape[1] % tile.columns == 0,
                "COEFFICIENT_GRADS": coefficients,
            }
            return {name: value for name, value in found.items() if name in few_queries_grads_kernel.arg_names}

        return self._launcher(("few_queries_grads", coefficients), few_queries_grads_kernel, constants, tile)

    def states(
        self,
        *,
        v_head: int,
        of_queries: bool,
        has_initial: bool,
        write_sums: bool,
        write_total: bool,
        write_prefix: bool,
    ) -> Launcher:
        s, tile, v_alignment = self.s, self.tuning.states, _alignment(v_head)

        def constants() -> dict[str, Any]:
            is_gathered = of_queries and self.is_gathered
            row_length = self.segmented_length(of_queries=of_queries)
            return self._sizes() | {
                "X_ALIGN": _alignment((s.q_strides if of_queries else s.k_strides)[2]),
                "V_ALIGN": v_alignment,
                "GROUP": self.num_heads // self.num_key_heads if of_queries else 1,
                "SEGMENT": self.segment(row_length),
                "ROWS": tile.rows,
                "NUM_I": tile.num_i,
                "EVEN": not is_gathered and self._is_even(row_length, tile=tile),
                "TABLE": s.is_packed,
                "PACKED": s.is_packed,
                "GATHERED": is_gathered,
                "BY_CHUNK": is_gathered and s.causal,
                "OF_QUERIES": of_queries,
                "HAS_MASK": s.has_mask and not of_queries,
                "HAS_COEFFICIENTS": s.has_coefficients,
                "NORMALIZE": s.normalize,
                "HAS_INITIAL": has_initial,
                "WRITE_SUMS": write_sums,
                "WRITE_TOTAL": write_total,
                "WRITE_PREFIX": write_prefix,
            }

        key = ("states", v_alignment, of_queries, has_initial, write_sums, write_total, write_prefix)
        return self._launcher(key, states_kernel, constants, tile)

    def segment_scan(self, *, row_length: int, reverse: bool, write_total: bool, write_before: bool) -> Launcher:
        segment = self.segment(row_length)

        def constants() -> dict[str, Any]:
            most = triton.cdiv(row_length, segment)
            return {
                "VALUES": self.layout.num_rows * self.head_dim,
                "FEATURES": self.layout.num_rows,
                "BLOCK": SCAN_BLOCK,
                "SEGMENTS": min(32, triton.next_power_of_2(most)),
                "SEGMENT": segment,
                "PACKED": self.s.is_packed,
                "REVERSE": int(reverse),
                "WRITE_TOTAL": write_total,
                "WRITE_BEFORE": write_before,
            }

        key = ("scan", row_length, reverse, write_total, write_before)
        return self._launcher(key, segment_scan_kernel, constants, None)

    def shift(self) -> Launcher:
        def constants() -> dict[str, Any]:
            return {
                "FEATURES": self.layout.num_rows,
                "DP": self.head_dim,
                "BLOCK": SHIFT_BLOCK,
                "SEGMENT": self.segment(self.s.k_shape[1]),
                "CHUNK": self.tuning.chunk,
                "CHUNKS": min(SHIFT_CHUNKS, self.segment(self.s.k_shape[1]) // self.tuning.chunk),
                "PACKED": self.s.is_packed,
            }

        return self._launcher("shift", shift_kernel, constants, None)

    def _launcher(self, key: Any, kernel: Any, constants: Any, tile: Tile | None) -> Launcher:
        found = self._launchers.get(key)
        if found is None:
            options: dict[str, Any] = {"num_warps": 4, "num_stages": 1}
            if tile is not None:
                options = {
                    "num_warps": tile.num_warps,
                    "num_stages": tile.num_stages,
                    "max_registers": tile.max_registers,
                }
            found = self._launchers[key] = Launcher(kernel, constants(), **options)
        return found

    def _sizes(self) -> dict[str, Any]:
        degrees = self.s.degrees
        return {
            "GROUP": self.num_heads // self.num_key_heads,
            "F": self.s.q_shape[3],
            "FP": self.layout.padded,
            "D": self.s.head_dim,
            "DP": self.head_dim,
            "TERM0": int(0 in degrees),
            "TERM1": int(1 in degrees),
            "TERM2": int(2 in degrees),
            "CHUNK": self.tuning.chunk,
            "OPERAND": tl.bfloat16 if self.operand == torch.bfloat16 else tl.float32,
            "PRECISION": self._precision,
        }

    def _tile_constants(self, tile: Tile, has_table: bool, has_state: bool, has_initial: bool) -> dict[str, Any]:
        """Of the kernels that work on tiles of queries or keys."""
        s = self.s
        drop = s.nonnegative and s.normalize
        square = drop and s.sum_of_squares and {0, 2} <= set(s.degrees)
        return self._sizes() | {
            "Q_ALIGN": _alignment(s.q_strides[2]),
            "K_ALIGN": _alignment(s.k_strides[2]),
            "V_ALIGN": _alignment(s.v_strides[2]),
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "NUM_I": tile.num_i,
            "EVEN": not self.is_gathered and self._is_even(s.q_shape[1], s.k_shape[1], tile=tile),
            "TABLE": has_table,
            "PACKED": s.is_packed,
            "GATHERED": self.is_gathered,
            "CAUSAL": s.causal,
            "HAS_STATE": has_state,
            "HAS_INITIAL": has_initial,
            "HAS_MASK": s.has_mask,
            "HAS_COEFFICIENTS": s.has_coefficients,
            "NORMALIZE": s.normalize,
            "DROP": drop,
            "SQUARE": square,
            "CLAMP": drop and not square and (len(s.degrees) > 1 or s.degrees == (1,)),
        }

    @property
    def _queries_have_table(self) -> bool:
        return self.s.is_packed or self.is_gathered

    def _is_even(self, *lengths: int, tile: Tile) -> bool:
        """Whether rows of such lengths are whole tiles, so that no load needs a mask."""
        return not self.s.is_packed and not any(length % tile.rows for length in lengths)

    @property
    def _precision(self) -> str:
        """For operands that are float32: those of float16 inputs too, for squares of them are beyond its range."""
        return "tf32" if self.operand == torch.bfloat16 or self.s.allows_tf32 else "tf32x3"

    @property
    def _rounding(self) -> float:
        """What of the state's part of the normaliser counts as zero, relative to the terms it is the sum of.

        The numerators are that imprecise: the quotient would be rounding error divided by rounding error.
        """
        if self.operand == torch.bfloat16:
            return 2.0**-11
        return 2.0**-14 if self.s.allows_tf32 else rounding(torch.float32)
