"""Sums over keys or queries: Σ φ(x) vᵀ and its normaliser, over segments of a sequence and before every chunk of one.

Rows of a state are the features in square form: x_i·x_j for all i and j (FP² rows), then x_i (FP), then 1, of the
terms there are. Both triangles of x_i·x_j are there, so no feature needs a weight, and sums are symmetric. The sums of
features alone are called moments: Σ xxᵀ, Σ x and a count.

Over keys the values are v and every key weighs 1. Over queries, for the gradients of the keys, the values are
c_d·scale^d · ``factors`` · dout, a query weighs c_d·scale^d · ``weights``, and the walk goes from the last chunk to
the first; a factor is 1 / normaliser, or 0 where the state had no part in the output. A sum over keys is not scaled,
since heads that share it differ in their coefficients.
"""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import head_offset, load_coefficients, load_columns, load_rows, locate, products, slot_of


@triton.jit
def states_kernel(
    x,
    v,
    key_mask,
    factors,
    weights,
    coefficients,
    order,
    row_borders,
    table,
    initial,
    initial_moments,
    sums,
    prefix,
    prefix_moments,
    x_batch,
    x_time,
    x_head,
    v_batch,
    v_time,
    v_head,
    num_rows,
    row_length,
    pieces_per_row,
    num_segments,
    num_key_heads,
    scale,
    X_ALIGN: tl.constexpr,
    V_ALIGN: tl.constexpr,
    GROUP: tl.constexpr,
    F: tl.constexpr,
    FP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    SEGMENT: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_I: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    TABLE: tl.constexpr,
    PACKED: tl.constexpr,
    GATHERED: tl.constexpr,
    BY_CHUNK: tl.constexpr,
    OF_QUERIES: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    WRITE_SUMS: tl.constexpr,
    WRITE_TOTAL: tl.constexpr,
    WRITE_PREFIX: tl.constexpr,
):
    """One program: one segment and key head, and NUM_I · FP features of degree two, or all that is of lower degree.

    ``sums`` (num_segments + sequences, key heads, features · (DP + 1)) takes the sums over the segment; those over
    the last one of a sequence, which no other one needs, are kept behind the rest, and only for ``WRITE_TOTAL``.
    ``prefix`` takes those over what comes before each chunk in its segment, plus ``initial``. Where queries are
    gathered, ``row_borders`` says which of the sorted rows belong to which chunk, or sequence if not ``BY_CHUNK``;
    else a segment's rows are a range, of whole tiles if ``EVEN``.
    """
    GROUPS: tl.constexpr = FP // NUM_I if TERM2 else 0
    FEATURES: tl.constexpr = TERM2 * FP * FP + TERM1 * FP + TERM0
    group = tl.program_id(0) % (GROUPS + 1)
    head = tl.program_id(0) // (GROUPS + 1) % num_key_heads
    segment = tl.program_id(0) // (GROUPS + 1) // num_key_heads
    sequence, start, end, chunk, _, sequence_start, sequence_end = locate(
        segment, table, row_length, pieces_per_row, SEGMENT, CHUNK, TABLE
    )
    if end <= start:
        return
    segment_start = start
    if GATHERED and not BY_CHUNK:
        sequence_start = tl.load(row_borders + chunk)
    if OF_QUERIES:
        goes_on = start != sequence_start
    else:
        goes_on = end != sequence_end
    if PACKED:
        segment = start // SEGMENT  # those that go on start so far apart
    segment = tl.where(goes_on, segment, num_segments + sequence)
    batch = sequence.to(tl.int64)
    if PACKED:
        batch *= 0
    num_chunks = tl.cdiv(end - start, CHUNK)
    if BY_CHUNK:
        start = tl.load(row_borders + chunk)
        end = tl.load(row_borders + chunk + num_chunks)
    x += batch * x_batch
    v += batch * v_batch
    key_mask += batch * num_rows
    at_head = batch * num_rows * (num_key_heads * GROUP) + head * GROUP
    factors += at_head
    weights += at_head
    sums += (segment.to(tl.int64) * num_key_heads + head) * (FEATURES * (DP + 1))
    initial += (sequence.to(tl.int64) * num_key_heads + head) * (FEATURES * DP)
    initial_moments += (sequence.to(tl.int64) * num_key_heads + head) * FEATURES
    LINEAR: tl.constexpr = TERM2 * FP * FP
    CONSTANT: tl.constexpr = LINEAR + TERM1 * FP
    ALL_REAL: tl.constexpr = EVEN and not HAS_MASK
    row = tl.arange(0, ROWS)
    i = tl.arange(0, FP)
    d = tl.arange(0, DP)
    one = tl.arange(0, 1)
    at_square = i[:, None] * FP + i[None, :]
    at_linear = (LINEAR + i)[:, None] * DP + d[None, :]
    at_values = (group * (NUM_I * FP) + tl.arange(0, NUM_I * FP))[:, None] * DP + d[None, :]
    for MOMENTS in tl.static_range(2):
        # The same walk in two versions, of which a program takes one.
        if MOMENTS:
            is_mine = group == GROUPS
        else:
            is_mine = group < GROUPS
        if is_mine:
            square = tl.zeros((FP, FP), tl.float32)
            linear = tl.zeros((FP, DP), tl.float32)
            linear_moment = tl.zeros((FP,), tl.float32)
            constant = tl.zeros((DP,), tl.float32)
            constant_moment = tl.zeros((1,), tl.float32)
            values = tl.zeros((NUM_I * FP, DP), tl.float32)

            # Rows are walked in stretches, the rows of one chunk (or all, if no states are written on the way), and a
            # stretch in steps: a tile of rows of one of the heads that share the state.
            for turn in range(num_chunks if WRITE_PREFIX else 1):
                first = start
                last = end
                if WRITE_PREFIX:
                    place = num_chunks - 1 - turn if OF_QUERIES else turn
                    if BY_CHUNK:
                        first = tl.load(row_borders + chunk + place)
                        last = tl.load(row_borders + chunk + place + 1)
                    else:
                        first = start + place * CHUNK
                        last = tl.minimum(first + CHUNK, end)
                    slot = slot_of(
                        chunk + place,
                        sequence,
                        segment_start + place * CHUNK,
                        sequence_start,
                        sequence_end,
                        row_length,
                        CHUNK,
                        PACKED,
                        OF_QUERIES,
                        HAS_INITIAL,
                    ).to(tl.int64)
                    to = prefix + (slot * num_key_heads + head) * (FEATURES * DP)
                    to_moments = prefix_moments + (slot * num_key_heads + head) * FEATURES
                    if MOMENTS:
                        if TERM2:
                            y2 = square
                            if HAS_INITIAL:
                                y2 += tl.load(initial_moments + at_square)
                            tl.store(to_moments + at_square, y2)
                        if TERM1:
                            y1 = linear
                            y1_moment = linear_moment
                            if HAS_INITIAL:
                                y1 += tl.load(initial + at_linear)
                                y1_moment += tl.load(initial_moments + LINEAR + i)
                            tl.store(to + at_linear, y1.to(prefix.dtype.element_ty))
                            tl.store(to_moments + LINEAR + i, y1_moment)
                        if TERM0:
                            y0 = constant
                            y0_moment = constant_moment
                            if HAS_INITIAL:
                                y0 += tl.load(initial + CONSTANT * DP + d)
                                y0_moment += tl.load(initial_moments + CONSTANT + one)
                            tl.store(to + CONSTANT * DP + d, y0.to(prefix.dtype.element_ty))
                            tl.store(to_moments + CONSTANT + one, y0_moment)
                    else:
                        y2 = values
                        if HAS_INITIAL:
                            y2 += tl.load(initial + at_values)
                        tl.store(to + at_values, y2.to(prefix.dtype.element_ty))
                num_tiles = tl.cdiv(last - first, ROWS)
                for step in range(num_tiles * GROUP):
                    member = step % GROUP
                    tile_start = first + step // GROUP * ROWS
                    real = tile_start + row < last
                    if GATHERED:
                        at_row = tl.load(order + tile_start + row, mask=real, other=0).to(tl.int64)
                        x_tile = x + head_offset(head * GROUP + member, x_head, X_ALIGN)
                        v_tile = v + head_offset(head * GROUP + member, v_head, V_ALIGN)
                        at_query = member
                    else:
                        at_row = row
                        x_tile = (
                            x + tile_start.to(tl.int64) * x_time + head_offset(head * GROUP + member, x_head, X_ALIGN)
                        )
                        v_tile = (
                            v + tile_start.to(tl.int64) * v_time + head_offset(head * GROUP + member, v_head, V_ALIGN)
                        )
                        at_query = tile_start.to(tl.int64) * (num_key_heads * GROUP) + member
                    if HAS_MASK:
                        real = real & (tl.load(key_mask + tile_start + row, mask=real, other=0) != 0)
                    every = load_rows(x_tile, at_row, real, x_time, F, FP, OPERAND, ALL_REAL)
                    weight = real.to(tl.float32)
                    value_scale = weight
                    if OF_QUERIES:
                        k0, k1, k2 = load_coefficients(
                            coefficients,
                            scale,
                            sequence,
                            head * GROUP + member,
                            num_key_heads * GROUP,
                            HAS_COEFFICIENTS,
                            TERM0,
                            TERM1,
                            TERM2,
                        )
                        if NORMALIZE:
                            at_weight = at_query + at_row * (num_key_heads * GROUP)
                            value_scale = tl.load(factors + at_weight, mask=real, other=0.0)
                            weight = tl.load(weights + at_weight, mask=real, other=0.0)
                            weight = tl.where(value_scale == 0.0, 0.0, weight)
                        else:
                            weight *= 0.0
                    if MOMENTS:
                        if TERM2:
                            right = every
                            if OF_QUERIES:
                                right = (every.to(tl.float32) * (weight * k2)[:, None]).to(OPERAND)
                            square = tl.dot(tl.trans(every), right, square, input_precision=PRECISION)
                        if TERM1 or TERM0:
                            value = load_rows(v_tile, at_row, real, v_time, D, DP, OPERAND, ALL_REAL)
                            scaled = value.to(tl.float32)
                            if OF_QUERIES:
                                scaled *= value_scale[:, None]
                            if TERM1:
                                if OF_QUERIES:
                                    value = (scaled * k1).to(OPERAND)
                                    linear_moment += tl.sum(every.to(tl.float32) * (weight * k1)[:, None], axis=0)
                                else:
                                    linear_moment += tl.sum(every.to(tl.float32), axis=0)
                                linear = tl.dot(tl.trans(every), value, linear, input_precision=PRECISION)
                            if TERM0:
                                if OF_QUERIES:
                                    constant += tl.sum(scaled, axis=0) * k0
                                    constant_moment += tl.sum(weight, axis=0) * k0
                                else:
                                    constant += tl.sum(scaled, axis=0)
                                    constant_moment += tl.sum(weight, axis=0)
                    else:
                        value = load_rows(v_tile, at_row, real, v_time, D, DP, OPERAND, ALL_REAL)
                        some = load_columns(
                            x_tile, at_row, real, x_time, group * NUM_I, NUM_I, F, FP, OPERAND, ALL_REAL
                        )
                        if OF_QUERIES:
                            value = (value.to(tl.float32) * (value_scale * k2)[:, None]).to(OPERAND)
                        features = products(some, every, ROWS, NUM_I, FP)
                        values = tl.dot(tl.trans(features), value, values, input_precision=PRECISION)

            if WRITE_SUMS:
                moments = sums + FEATURES * DP
                if goes_on | WRITE_TOTAL:
                    if MOMENTS:
                        if TERM2:
                            tl.store(moments + at_square, square)
                        if TERM1:
                            tl.store(sums + at_linear, linear)
                            tl.store(moments + LINEAR + i, linear_moment)
                        if TERM0:
                            tl.store(sums + CONSTANT * DP + d, constant)
                            tl.store(moments + CONSTANT + one, constant_moment)
                    else:
                        tl.store(sums + at_values, values)


@triton.jit
def segment_scan_kernel(
    sums,
    before,
    before_moments,
    borders,
    segments_per_row,
    num_segments,
    num_key_heads,
    VALUES: tl.constexpr,
    FEATURES: tl.constexpr,
    BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    PACKED: tl.constexpr,
    REVERSE: tl.constexpr,
    WRITE_TOTAL: tl.constexpr,
    WRITE_BEFORE: tl.constexpr,
):
    """Sums over segments before each one (after, if ``REVERSE``); those over the last one become the sequence's total.

    SEGMENTS are loaded at a time: one after another they would wait for memory each time.
    """
    WIDTH: tl.constexpr = VALUES + FEATURES
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    block = tl.program_id(0) % BLOCKS
    head = tl.program_id(0) // BLOCKS % num_key_heads
    sequence = tl.program_id(0) // BLOCKS // num_key_heads
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    if PACKED:
        start = tl.load(borders + sequence).to(tl.int32)
        count = tl.cdiv(tl.load(borders + sequence + 1).to(tl.int32) - start, SEGMENT)
        first = start // SEGMENT
    else:
        count = segments_per_row
        first = sequence * segments_per_row
    so_far = tl.zeros((BLOCK,), tl.float32)
    for done in range(0, count, SEGMENTS):
        # A step's own segment is not read: nothing of it may reach what comes before it.
        step = done + tl.arange(0, SEGMENTS)
        previous = first + (count - step if REVERSE else step - 1)
        mask = (step < count)[:, None] & inside[None, :]
        row = (previous.to(tl.int64) * num_key_heads + head)[:, None]
        more = tl.load(sums + row * WIDTH + column[None, :], mask=mask & (step > 0)[:, None], other=0.0)
        if WRITE_BEFORE:
            earlier = so_far[None, :] + tl.cumsum(more, axis=0)
            slot = first + (count - 1 - step if REVERSE else step)
            if PACKED:
                # As `slot_of` has it.
                slot = tl.where(step > 0, slot + REVERSE, 0)
            row = (slot.to(tl.int64) * num_key_heads + head)[:, None]
            is_value = (column < VALUES)[None, :]
            to = before + row * VALUES + column[None, :]
            tl.store(to, earlier.to(before.dtype.element_ty), mask=mask & is_value)
            tl.store(before_moments + row * FEATURES + (column - VALUES)[None, :], earlier, mask=mask & ~is_value)
        so_far += tl.sum(more, axis=0)
    if WRITE_TOTAL:
        last = sums + ((num_segments + sequence).to(tl.int64) * num_key_heads + head) * WIDTH + column
        tl.store(last, tl.load(last, mask=inside, other=0.0) + so_far, mask=inside)


@triton.jit
def shift_kernel(
    before,
    before_moments,
    prefix,
    prefix_moments,
    table,
    row_length,
    segments_per_row,
    num_key_heads,
    FEATURES: tl.constexpr,
    DP: tl.constexpr,
    BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Add what comes before a segment to the states within it; one program: one segment, key head and BLOCK numbers.

    It waits for CHUNKS states at a time: one after another, memory would be idle in between.
    """
    VALUES: tl.constexpr = FEATURES * DP
    BLOCKS: tl.constexpr = (VALUES + BLOCK - 1) // BLOCK
    ALL_BLOCKS: tl.constexpr = BLOCKS + (FEATURES + BLOCK - 1) // BLOCK
    block = tl.program_id(0) % ALL_BLOCKS
    head = tl.program_id(0) // ALL_BLOCKS % num_key_heads
    segment = tl.program_id(0) // ALL_BLOCKS // num_key_heads
    sequence, start, end, chunk, _, sequence_start, sequence_end = locate(
        segment, table, row_length, segments_per_row, SEGMENT, CHUNK, PACKED
    )
    if (end <= start) | (start == sequence_start):  # nothing comes before the first one
        return
    from_slot = slot_of(
        segment, sequence, start, sequence_start, sequence_end, row_length, SEGMENT, PACKED, False, False
    )
    from_slot = from_slot.to(tl.int64)
    # Chunks that follow another one have neighbouring slots, also where edges have their own.
    slot = slot_of(chunk, sequence, start, sequence_start, sequence_end, row_length, CHUNK, PACKED, False, False)
    slot = slot.to(tl.int64)
    num_chunks = tl.cdiv(end - start, CHUNK)
    if block < BLOCKS:
        column = block * BLOCK + tl.arange(0, BLOCK)
        _add_to_each(prefix, slot, num_chunks, before, from_slot, head, num_key_heads, column, VALUES, CHUNKS)
    else:
        column = (block - BLOCKS) * BLOCK + tl.arange(0, BLOCK)
        _add_to_each(
            prefix_moments, slot, num_chunks, before_moments, from_slot, head, num_key_heads, column, FEATURES, CHUNKS
        )


@triton.jit
def _add_to_each(
    states, slot, count, sums, from_slot, head, num_key_heads, column, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr
):
    """Add one row of ``sums`` to ``count`` of ``states``, of which AT_ONCE are awaited together."""
    inside = column < WIDTH
    more = tl.load(sums + (from_slot * num_key_heads + head) * WIDTH + column, mask=inside, other=0.0)
    for first in range(0, count, AT_ONCE):
        place = first + tl.arange(0, AT_ONCE)
        to = states + ((slot + place) * num_key_heads + head)[:, None] * WIDTH + column[None, :]
        mask = (place < count)[:, None] & inside[None, :]
        total = tl.load(to, mask=mask, other=0.0).to(tl.float32) + more[None, :]
        tl.store(to, total.to(states.dtype.element_ty), mask=mask)
