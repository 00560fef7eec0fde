"""The selective scan: one kernel in each direction."""

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from torch import Tensor

from rebased.ops.triton.launch import Launcher
from rebased.ops.triton.rows import copied, rows_for, with_rows
from rebased.ops.triton.selective_scan_kernels import selective_scan_backward_kernel, selective_scan_forward_kernel

TILE_STATES = 128
"""Of a tile, (LANES, NP): each thread of a warp has four side by side, which is what it loads at once."""
THREAD_STATES = 32
"""How many numbers a thread holds of the states of STEPS tokens; in the backward pass as many decays too."""
FORWARD_OUTER = 4
"""The most tiles of a program: they share what is loaded for a token, but leave registers for fewer tokens."""
BACKWARD_OUTER = 2
BACKWARD_REGISTERS = 168
"""Of a thread, where programs are many: twelve of them then run at once on a multiprocessor."""
ENOUGH_PROGRAMS = 2048
"""While so many remain, a program takes twice the channels."""


@dataclass(frozen=True)
class Tile:
    """How much a program takes at a time."""

    outer: int
    """Tiles of channels."""
    steps: int
    """Tokens."""
    registers: int | None = None
    """The most that a thread may have."""


def forward(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor | None,
    chunk: int,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last state, and the states before each chunk and after the last."""
    B, T = x.shape[:2]
    y = torch.empty_like(x)
    written = rows_for(y)
    last = x.new_empty(B, *A.shape, dtype=torch.float32)
    kept = last.new_empty(B, triton.cdiv(T, chunk) + 1, *A.shape)
    x, dt, b, c = (with_rows(tensor) for tensor in (x, dt, b, c))
    rows, columns = {"X": x, "DT": dt, "Y": written}, {"B": b, "C": c}
    plan = _Plan(x, A, chunk, tile or _tile(x, A, chunk, FORWARD_OUTER, None), rows, columns)
    _launcher("forward", plan.constants, plan.tile, state is not None)(
        plan.num_programs,
        # A kernel does not read what is missing, but something must be passed.
        [x, dt, A.contiguous(), b, c, last if state is None else state.contiguous(), written, last, kept],
        [T, x.shape[2], *_strides_of(x, dt, b, c, written)],
        [],
    )
    return copied(y, written), last, kept


def backward(
    dy: Tensor,
    dlast: Tensor | None,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    b: Tensor,
    c: Tensor,
    kept: Tensor,
    chunk: int,
    tile: Tile | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, dt, A, b, c and the first state."""
    (B, T, G, M), N = x.shape, A.shape[-1]
    dx, ddt, db, dc = (torch.empty_like(tensor) for tensor in (x, dt, b, c))
    written_dx, written_ddt = rows_for(dx), rows_for(ddt)
    dy, x, dt, b, c = (with_rows(tensor) for tensor in (dy, x, dt, b, c))
    rows, columns = {"DY": dy, "X": x, "DT": dt, "DX": written_dx, "DDT": written_ddt}, {"B": b, "C": c}
    tile = tile or _tile(x, A, chunk, BACKWARD_OUTER, BACKWARD_REGISTERS)
    plan = _Plan(x, A, chunk, tile, rows, columns)
    dA, dstate = (kept.new_empty(B, G, M, N) for _ in range(2))
    partial_db, partial_dc = (kept.new_empty(B, G, T, plan.num_blocks, N) for _ in range(2))
    scratch = kept.new_empty(plan.num_programs, plan.num_scratch)
    _launcher("backward", plan.constants, plan.tile, dlast is not None)(
        plan.num_programs,
        [
            *(dy, dstate if dlast is None else dlast.contiguous(), x, dt, A.contiguous(), b, c, kept.contiguous()),
            *(written_dx, written_ddt, dA, partial_db, partial_dc, dstate, scratch),
        ],
        [T, G, *_strides_of(dy, x, dt, b, c, written_dx, written_ddt)],
        [],
    )
    for grad, partial in ((db, partial_db), (dc, partial_dc)):
        grad.copy_(partial.sum(dim=3).transpose(1, 2))
    return copied(dx, written_dx), copied(ddt, written_ddt), dA.sum(dim=0).to(A.dtype), db, dc, dstate


def _strides_of(*tensors: Tensor) -> list[int]:
    """Of batch and groups; those of time are constants."""
    return [stride for x in tensors for stride in (x.stride(0), x.stride(2))]


def _tile_shape(A: Tensor) -> tuple[int, int]:
    """Channels and states of a tile."""
    padded = max(TILE_STATES // 32, triton.next_power_of_2(A.shape[-1]))
    return TILE_STATES // padded, padded


def _tile(x: Tensor, A: Tensor, chunk: int, most_outer: int, registers: int | None) -> Tile:
    (B, _, G, M), lanes = x.shape, _tile_shape(A)[0]
    outer = 1
    while outer < most_outer and B * G * triton.cdiv(M, 2 * outer * lanes) >= ENOUGH_PROGRAMS:
        outer *= 2
    steps = min(chunk, max(1, THREAD_STATES * 32 // (outer * TILE_STATES)))
    return Tile(outer, steps, registers if outer > 1 else None)


class _Plan:
    """How the work is cut into programs, and what a kernel knows when it is compiled."""

    def __init__(
        self, x: Tensor, A: Tensor, chunk: int, tile: Tile, rows: dict[str, Tensor], columns: dict[str, Tensor]
    ) -> None:
        """``rows`` have a number for each channel, ``columns`` one for each state."""
        (B, T, G, M), N = x.shape, A.shape[-1]
        assert chunk % tile.steps == 0, f"{chunk=} must be a multiple of {tile.steps=}"
        lanes, padded = _tile_shape(A)
        width = tile.outer * lanes
        self.num_blocks = triton.cdiv(M, width)
        self.num_programs = B * G * self.num_blocks
        self.num_scratch = chunk // tile.steps * padded * width
        fits = M % width == 0
        whole = fits and padded == N and T % tile.steps == 0
        words = {name: _word(x, tile.outer) if fits else 1 for name, x in rows.items()}
        dt_word = min(words.pop(name) for name in ("DT", "DDT") if name in words)
        x_word = min(words.values())
        times = tuple((f"{name}_TIME", x.stride(1)) for name, x in (rows | columns).items())
        sizes = ("BLOCKS", self.num_blocks), ("M", M), ("N", N), ("NP", padded), ("LANES", lanes), ("CHUNK", chunk)
        steps = ("OUTER", tile.outer), ("STEPS", tile.steps), ("WHOLE", whole)
        self.constants = *times, *sizes, *steps, ("X_WORD", x_word), ("DT_WORD", dt_word)
        self.tile = tile


def _word(x: Tensor, outer: int) -> int:
    """How many of ``outer`` numbers side by side are one integer of at most eight bytes, aligned at every token."""
    word = min(outer, 8 // x.element_size())
    places = (x.data_ptr() // x.element_size(), *x.stride()[:3])
    return word if all(place % word == 0 for place in places) else 1


@lru_cache
def _launcher(direction: str, constants: tuple[tuple[str, int], ...], tile: Tile, is_given: bool) -> Launcher:
    """``is_given``: there is a first state, or a gradient of the last one."""
    if direction == "forward":
        kernel, others = selective_scan_forward_kernel, {"HAS_STATE": is_given}
    else:
        kernel, others = selective_scan_backward_kernel, {"HAS_DLAST": is_given}
    return Launcher(kernel, dict(constants) | others, num_warps=1, num_stages=1, max_registers=tile.registers)
