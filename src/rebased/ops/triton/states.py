"""Sums over keys or queries: Σ φ(x) vᵀ and its normaliser, over segments of a sequence and before every chunk.

Rows of a state are the features in square form: x_i·x_j for all i and j (FP² rows), then x_i (FP), then 1, of the
terms there are. Both triangles of x_i·x_j are there, so no feature needs a weight, and sums are symmetric. The sums of
features alone are called moments: Σ xxᵀ, Σ x and a count.

Over keys the values are v and every key weighs 1; over queries, for the gradients of the keys, the values are
dout / normaliser, a query weighs ``weights``, and the walk goes from the last chunk to the first.
"""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import load_coefficients, load_columns, load_rows, locate, products


@triton.jit
def states_kernel(
    x,
    v,
    key_mask,
    normalizer,
    weights,
    coefficients,
    order,
    row_borders,
    table,
    initial,
    initial_moments,
    partial,
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
    num_key_heads,
    scale,
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
    TABLE: tl.constexpr,
    PACKED: tl.constexpr,
    GATHERED: tl.constexpr,
    BY_CHUNK: tl.constexpr,
    OF_QUERIES: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DROP: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    WRITE_TOTAL: tl.constexpr,
    WRITE_PREFIX: tl.constexpr,
):
    """One program: one segment and key head, and NUM_I · FP features of degree two, or all that is of lower degree.

    ``partial`` (segments, key heads, features · (DP + 1)) takes the sums over single segments (``WRITE_TOTAL``), and
    gives those over the segments before this one (``HAS_START``). ``prefix`` is what a sequence holds before each
    chunk, times scale^degree, plus ``initial``. Where queries are gathered, ``row_borders`` says which of the sorted
    rows belong to which chunk (``BY_CHUNK``); else a segment's rows are a range.
    """
    GROUPS: tl.constexpr = FP // NUM_I if TERM2 else 0
    group = tl.program_id(0) % (GROUPS + 1)
    head = tl.program_id(0) // (GROUPS + 1) % num_key_heads
    segment = tl.program_id(0) // (GROUPS + 1) // num_key_heads
    sequence, start, end, chunk, _, _ = locate(segment, table, row_length, pieces_per_row, SEGMENT, CHUNK, TABLE)
    if end <= start:
        return
    batch = sequence.to(tl.int64)
    if PACKED:
        batch *= 0
    num_chunks = tl.cdiv(end - start, CHUNK)
    if BY_CHUNK:
        start = tl.load(row_borders + chunk)
        end = tl.load(row_borders + chunk + num_chunks)
    x += batch * x_batch + head.to(tl.int64) * GROUP * x_head
    v += batch * v_batch + head.to(tl.int64) * GROUP * v_head
    key_mask += batch * num_rows
    FEATURES: tl.constexpr = TERM2 * FP * FP + TERM1 * FP + TERM0
    partial += (segment * num_key_heads + head).to(tl.int64) * (FEATURES * (DP + 1))
    prefix += (chunk.to(tl.int64) * num_key_heads + head) * (FEATURES * DP)
    prefix_moments += (chunk.to(tl.int64) * num_key_heads + head) * FEATURES
    initial += (sequence.to(tl.int64) * num_key_heads + head) * (FEATURES * DP)
    initial_moments += (sequence.to(tl.int64) * num_key_heads + head) * FEATURES
    for WHICH in tl.static_range(2):
        # The same walk in two versions, of which a program takes one.
        if WHICH == 0:
            is_mine = group < GROUPS
        else:
            is_mine = group == GROUPS
        if is_mine:
            _walk(
                x,
                v,
                key_mask,
                normalizer,
                weights,
                coefficients,
                order,
                row_borders,
                initial,
                initial_moments,
                partial,
                prefix,
                prefix_moments,
                x_time,
                x_head,
                v_time,
                v_head,
                num_rows,
                num_key_heads,
                scale,
                sequence,
                batch,
                head,
                group,
                start,
                end,
                chunk,
                num_chunks,
                WHICH == 1,
                FEATURES,
                GROUP,
                F,
                FP,
                D,
                DP,
                TERM0,
                TERM1,
                TERM2,
                CHUNK,
                ROWS,
                NUM_I,
                OPERAND,
                PRECISION,
                GATHERED,
                BY_CHUNK,
                OF_QUERIES,
                HAS_MASK,
                HAS_COEFFICIENTS,
                NORMALIZE,
                DROP,
                HAS_START,
                HAS_INITIAL,
                WRITE_TOTAL,
                WRITE_PREFIX,
            )


@triton.jit
def _walk(
    x,
    v,
    key_mask,
    normalizer,
    weights,
    coefficients,
    order,
    row_borders,
    initial,
    initial_moments,
    partial,
    prefix,
    prefix_moments,
    x_time,
    x_head,
    v_time,
    v_head,
    num_rows,
    num_key_heads,
    scale,
    sequence,
    batch,
    head,
    group,
    start,
    end,
    chunk,
    num_chunks,
    MOMENTS: tl.constexpr,
    FEATURES: tl.constexpr,
    GROUP: tl.constexpr,
    F: tl.constexpr,
    FP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_I: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    GATHERED: tl.constexpr,
    BY_CHUNK: tl.constexpr,
    OF_QUERIES: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DROP: tl.constexpr,
    HAS_START: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    WRITE_TOTAL: tl.constexpr,
    WRITE_PREFIX: tl.constexpr,
):
    LINEAR: tl.constexpr = TERM2 * FP * FP
    CONSTANT: tl.constexpr = LINEAR + TERM1 * FP
    rows = tl.arange(0, ROWS)
    i = tl.arange(0, FP)
    d = tl.arange(0, DP)
    square = tl.zeros((FP, FP), tl.float32)
    linear = tl.zeros((FP, DP), tl.float32)
    linear_moment = tl.zeros((FP,), tl.float32)
    constant = tl.zeros((DP,), tl.float32)
    constant_moment = tl.zeros((1,), tl.float32)
    values = tl.zeros((NUM_I * FP, DP), tl.float32)
    feature = group * (NUM_I * FP) + tl.arange(0, NUM_I * FP)
    moment_start = partial + FEATURES * DP
    if HAS_START:
        if MOMENTS:
            if TERM2:
                square = tl.load(moment_start + i[:, None] * FP + i[None, :])
            if TERM1:
                linear = tl.load(partial + (LINEAR + i)[:, None] * DP + d[None, :])
                linear_moment = tl.load(moment_start + LINEAR + i)
            if TERM0:
                constant = tl.load(partial + CONSTANT * DP + d)
                constant_moment = tl.load(moment_start + CONSTANT + tl.arange(0, 1))
        else:
            values = tl.load(partial + feature[:, None] * DP + d[None, :])

    # Gathered rows come chunk by chunk; all others as one range, in which chunks end at regular places.
    NESTED: tl.constexpr = BY_CHUNK and WRITE_PREFIX
    for outer in range(num_chunks if NESTED else 1):
        first = start
        last = end
        if NESTED:
            turn = num_chunks - 1 - outer if OF_QUERIES else outer
            first = tl.load(row_borders + chunk + turn)
            last = tl.load(row_borders + chunk + turn + 1)
        num_tiles = tl.cdiv(last - first, ROWS)
        if NESTED:
            num_steps = num_tiles * GROUP + 1
        else:
            num_steps = num_tiles * GROUP
        for step in range(num_steps):
            member = step % GROUP
            tile = num_tiles - 1 - step // GROUP if OF_QUERIES else step // GROUP
            if WRITE_PREFIX:
                if NESTED:
                    place = turn
                    is_border = step == 0
                else:
                    place = tile * ROWS // CHUNK
                    if OF_QUERIES:
                        is_border = (member == 0) & (((tile + 1) * ROWS % CHUNK == 0) | (step == 0))
                    else:
                        is_border = tile * ROWS % CHUNK == 0
                if is_border:
                    to = prefix + place.to(tl.int64) * num_key_heads * (FEATURES * DP)
                    to_moments = prefix_moments + place.to(tl.int64) * num_key_heads * FEATURES
                    if MOMENTS:
                        if TERM2:
                            at = i[:, None] * FP + i[None, :]
                            x2 = square * (scale * scale)
                            if HAS_INITIAL:
                                x2 += tl.load(initial_moments + at)
                            tl.store(to_moments + at, x2)
                        if TERM1:
                            at = (LINEAR + i)[:, None] * DP + d[None, :]
                            x1 = linear * scale
                            x1_moment = linear_moment * scale
                            if HAS_INITIAL:
                                x1 += tl.load(initial + at)
                                x1_moment += tl.load(initial_moments + LINEAR + i)
                            tl.store(to + at, x1.to(prefix.dtype.element_ty))
                            tl.store(to_moments + LINEAR + i, x1_moment)
                        if TERM0:
                            x0 = constant
                            x0_moment = constant_moment
                            if HAS_INITIAL:
                                x0 += tl.load(initial + CONSTANT * DP + d)
                                x0_moment += tl.load(initial_moments + CONSTANT + tl.arange(0, 1))
                            tl.store(to + CONSTANT * DP + d, x0.to(prefix.dtype.element_ty))
                            tl.store(to_moments + CONSTANT + tl.arange(0, 1), x0_moment)
                    else:
                        at = feature[:, None] * DP + d[None, :]
                        x2 = values * (scale * scale)
                        if HAS_INITIAL:
                            x2 += tl.load(initial + at)
                        tl.store(to + at, x2.to(prefix.dtype.element_ty))
            if NESTED:
                # Step 0 only writes, so that chunks without queries are written too.
                member = (step + GROUP - 1) % GROUP
                tile = tl.where(step == 0, num_tiles, num_tiles - 1 - (step - 1) // GROUP)
            index = first + tile * ROWS + rows
            real = index < last
            if GATHERED:
                index = tl.load(order + index, mask=real, other=0)
            query_head = head * GROUP + member
            if HAS_MASK:
                real = real & (tl.load(key_mask + index, mask=real, other=0) != 0)
            x_tile = x + member * x_head
            at_row = index.to(tl.int64)
            every = load_rows(x_tile, at_row, real, x_time, F, FP, OPERAND)
            weight = real.to(tl.float32)
            value_scale = weight
            if OF_QUERIES:
                c0, c1, c2 = load_coefficients(
                    coefficients, sequence, query_head, num_key_heads * GROUP, HAS_COEFFICIENTS, TERM0, TERM1, TERM2
                )
                if NORMALIZE:
                    at_query = (batch * num_rows + at_row) * (num_key_heads * GROUP) + query_head
                    divisor = tl.load(normalizer + at_query, mask=real, other=1.0)
                    weight = tl.load(weights + at_query, mask=real, other=0.0)
                    value_scale = 1.0 / tl.abs(divisor) if DROP else 1.0 / divisor
                    if DROP:
                        weight = tl.where(divisor < 0, 0.0, weight)
                        value_scale = tl.where(divisor < 0, 0.0, value_scale)
                else:
                    weight *= 0.0
            if MOMENTS:
                if TERM2:
                    right = every
                    if OF_QUERIES:
                        right = (every.to(tl.float32) * (weight * c2)[:, None]).to(OPERAND)
                    square = tl.dot(tl.trans(every), right, square, input_precision=PRECISION)
                if TERM1 or TERM0:
                    value = load_rows(v + member * v_head, at_row, real, v_time, D, DP, OPERAND)
                    scaled = value.to(tl.float32)
                    if OF_QUERIES:
                        scaled *= value_scale[:, None]
                    if TERM1:
                        if OF_QUERIES:
                            value = (scaled * c1).to(OPERAND)
                            linear_moment += tl.sum(every.to(tl.float32) * (weight * c1)[:, None], axis=0)
                        else:
                            linear_moment += tl.sum(every.to(tl.float32), axis=0)
                        linear = tl.dot(tl.trans(every), value, linear, input_precision=PRECISION)
                    if TERM0:
                        if OF_QUERIES:
                            constant += tl.sum(scaled, axis=0) * c0
                            constant_moment += tl.sum(weight, axis=0) * c0
                        else:
                            constant += tl.sum(scaled, axis=0)
                            constant_moment += tl.sum(weight, axis=0)
            else:
                value = load_rows(v + member * v_head, at_row, real, v_time, D, DP, OPERAND)
                if OF_QUERIES:
                    value = (value.to(tl.float32) * (value_scale * c2)[:, None]).to(OPERAND)
                some = load_columns(x_tile, at_row, real, x_time, group * NUM_I, NUM_I, F, FP, OPERAND)
                features = products(some, every, ROWS, NUM_I, FP)
                values = tl.dot(tl.trans(features), value, values, input_precision=PRECISION)

    if WRITE_TOTAL:
        if MOMENTS:
            if TERM2:
                tl.store(moment_start + i[:, None] * FP + i[None, :], square)
            if TERM1:
                tl.store(partial + (LINEAR + i)[:, None] * DP + d[None, :], linear)
                tl.store(moment_start + LINEAR + i, linear_moment)
            if TERM0:
                tl.store(partial + CONSTANT * DP + d, constant)
                tl.store(moment_start + CONSTANT + tl.arange(0, 1), constant_moment)
        else:
            tl.store(partial + feature[:, None] * DP + d[None, :], values)


@triton.jit
def segment_scan_kernel(
    partial,
    total,
    first_segment,
    segments_per_row,
    num_key_heads,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    TABLE: tl.constexpr,
    REVERSE: tl.constexpr,
    WRITE_PREFIX: tl.constexpr,
):
    """Sums over a sequence's segments: ``total`` of all of them, and in place those before (after) each one."""
    BLOCKS: tl.constexpr = (WIDTH + BLOCK - 1) // BLOCK
    block = tl.program_id(0) % BLOCKS
    head = tl.program_id(0) // BLOCKS % num_key_heads
    sequence = tl.program_id(0) // BLOCKS // num_key_heads
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    if TABLE:
        first = tl.load(first_segment + sequence)
        count = tl.load(first_segment + sequence + 1) - first
    else:
        first = sequence * segments_per_row
        count = segments_per_row
    sums = tl.zeros((BLOCK,), tl.float32)
    for step in range(count):
        segment = first + (count - 1 - step if REVERSE else step)
        pointers = partial + (segment.to(tl.int64) * num_key_heads + head) * WIDTH + column
        more = tl.load(pointers, mask=inside, other=0.0)
        if WRITE_PREFIX:
            tl.store(pointers, sums, mask=inside)
        sums += more
    tl.store(total + (sequence.to(tl.int64) * num_key_heads + head) * WIDTH + column, sums, mask=inside)
