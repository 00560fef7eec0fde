"""What all kernels share: where a program works, and how tiles are loaded and multiplied.

Names in kernels: FP and DP are F and D padded to what a tile can be; ``TERM0`` … ``TERM2`` say which powers of the
score the kernel has; OPERAND is the dtype that matrix products take, sums are float32 throughout.
"""

import triton
import triton.language as tl

PIECE_COLUMNS = tl.constexpr(6)


@triton.jit
def locate(
    index,
    table,
    row_length,
    pieces_per_row,
    LENGTH: tl.constexpr,
    CHUNK: tl.constexpr,
    TABLE: tl.constexpr,
):
    """The index-th piece: sequence, first and last row, its chunk, where that starts, where the sequence ends.

    Without a table all sequences have one length and are cut evenly.
    """
    if TABLE:
        entry = table + index * PIECE_COLUMNS
        sequence = tl.load(entry)
        start = tl.load(entry + 1)
        end = tl.load(entry + 2)
        chunk = tl.load(entry + 3)
        chunk_start = tl.load(entry + 4)
        sequence_end = tl.load(entry + 5)
    else:
        sequence = index // pieces_per_row
        start = index % pieces_per_row * LENGTH
        end = tl.minimum(start + LENGTH, row_length)
        chunk = sequence * tl.cdiv(row_length, CHUNK) + start // CHUNK
        chunk_start = start // CHUNK * CHUNK
        sequence_end = row_length
    return sequence, start, end, chunk, chunk_start, sequence_end


@triton.jit
def load_rows(pointers, rows, real, stride, WIDTH: tl.constexpr, PADDED: tl.constexpr, OPERAND: tl.constexpr):
    """Some rows of a matrix, (rows, PADDED); zero where ``real`` is False and beyond WIDTH, whatever memory holds."""
    columns = tl.arange(0, PADDED)
    mask = real[:, None]
    if WIDTH != PADDED:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(pointers + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0).to(OPERAND)


@triton.jit
def load_columns(
    pointers, rows, real, stride, first, NUM: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, OPERAND: tl.constexpr
):
    """Columns first, first + 1, … of the same rows, (rows, NUM)."""
    columns = first + tl.arange(0, NUM)
    mask = real[:, None]
    if WIDTH != PADDED:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(pointers + rows[:, None] * stride + columns[None, :], mask=mask, other=0.0).to(OPERAND)


@triton.jit
def store_rows(pointers, rows, real, stride, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    columns = tl.arange(0, PADDED)
    mask = real[:, None]
    if WIDTH != PADDED:
        mask = mask & (columns < WIDTH)[None, :]
    tl.store(pointers + rows[:, None] * stride + columns[None, :], x.to(pointers.dtype.element_ty), mask=mask)


@triton.jit
def products(some, every, ROWS: tl.constexpr, NUM: tl.constexpr, FP: tl.constexpr):
    """Features x_i·x_j of each row for NUM values of i and all j, (ROWS, NUM · FP)."""
    return tl.reshape(some[:, :, None] * every[:, None, :], (ROWS, NUM * FP))


@triton.jit
def contract(some, dfeatures, ROWS: tl.constexpr, NUM: tl.constexpr, FP: tl.constexpr):
    """Σ_i x_i · dfeatures_ij, (ROWS, FP): half the gradient of `products` where dfeatures is symmetric."""
    return tl.sum(some.to(tl.float32)[:, :, None] * tl.reshape(dfeatures, (ROWS, NUM, FP)), axis=1)


@triton.jit
def dot_precisely(x, matrix, PRECISION: tl.constexpr):
    """x @ matrix for a float32 matrix, which is not to be rounded to x's few bits."""
    if x.dtype == tl.float32:
        return tl.dot(x, matrix, input_precision=PRECISION)
    high = matrix.to(x.dtype)
    low = (matrix - high.to(tl.float32)).to(x.dtype)
    return tl.dot(x, low, tl.dot(x, high))


@triton.jit
def load_coefficients(
    pointers, sequence, head, num_heads, HAS: tl.constexpr, TERM0: tl.constexpr, TERM1: tl.constexpr, TERM2: tl.constexpr
):
    """c0, c1, c2 of a head; 1 where there are none."""
    c0 = 1.0
    c1 = 1.0
    c2 = 1.0
    if HAS:
        pointers += (sequence * num_heads + head) * (TERM0 + TERM1 + TERM2)
        if TERM0:
            c0 = tl.load(pointers)
        if TERM1:
            c1 = tl.load(pointers + TERM0)
        if TERM2:
            c2 = tl.load(pointers + TERM0 + TERM1)
    return c0, c1, c2


@triton.jit
def similarity(s, k0, k1, k2, TERM0: tl.constexpr, TERM1: tl.constexpr, TERM2: tl.constexpr):
    """k0 + k1·s + k2·s², of the terms there are."""
    if TERM2:
        total = s * s * k2
        if TERM1:
            total += s * k1
    else:
        total = s * k1 if TERM1 else s * 0.0
    if TERM0:
        total += k0
    return total


@triton.jit
def slope(s, k1, k2, TERM1: tl.constexpr, TERM2: tl.constexpr):
    """The derivative of `similarity`."""
    if TERM2:
        total = s * (2.0 * k2)
        if TERM1:
            total += k1
    else:
        total = s * 0.0 + k1 if TERM1 else s * 0.0
    return total
