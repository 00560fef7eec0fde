"""Gradients of the queries and coefficients, and what the keys' gradients need to know of each query.

With g = dout / normaliser, sim_ij enters the loss with slope g_i·v_j + e_i, where e_i = -g_i·out_i is the gradient of
the normaliser. The two nearly cancel where a key outweighs all others, so they are added before anything is rounded.
But e must be more precise than the stored output allows. Σ_j sim_ij dout_i·v_j, from which it follows, comes along
with the sums here, and what the estimate from the stored output lacks is made up for at the end.
"""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import (
    add_coefficient_sums,
    common_factor,
    contract,
    direct_terms,
    dot_precisely,
    head_offset,
    load_coefficients,
    load_columns,
    load_keys,
    load_rows,
    locate,
    place_queries,
    similarity_and_half_slope,
    state_slot,
    store_coefficient_grads,
    store_rows,
)


@triton.jit
def query_grads_kernel(
    q,
    k,
    v,
    out,
    normalizer,
    dout,
    dq,
    dnormalizer,
    factors,
    dcoefficients,
    key_mask,
    coefficients,
    prefix,
    prefix_moments,
    table,
    order,
    positions,
    q_batch,
    q_time,
    q_head,
    k_batch,
    k_time,
    k_head,
    v_batch,
    v_time,
    v_head,
    num_queries,
    num_keys,
    tiles_per_row,
    num_heads,
    scale,
    Q_ALIGN: tl.constexpr,
    K_ALIGN: tl.constexpr,
    V_ALIGN: tl.constexpr,
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
    COLUMNS: tl.constexpr,
    NUM_I: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    TABLE: tl.constexpr,
    PACKED: tl.constexpr,
    GATHERED: tl.constexpr,
    CAUSAL: tl.constexpr,
    HAS_STATE: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    COEFFICIENT_GRADS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    DROP: tl.constexpr,
    SQUARE: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """One program: one tile of queries of one head."""
    head = tl.program_id(0) % num_heads  # neighbours in memory are neighbours in time
    tile = tl.program_id(0) // num_heads
    sequence, start, end, chunk, chunk_start, sequence_start, sequence_end = locate(
        tile, table, num_queries, tiles_per_row, ROWS, CHUNK, TABLE
    )
    if end <= start:
        return
    batch = sequence.to(tl.int64)
    if PACKED:
        batch *= 0
    key_head = head // GROUP
    num_key_heads = num_heads // GROUP
    q, at_query, row, real, position = place_queries(
        q,
        order,
        positions,
        batch,
        head,
        start,
        end,
        num_queries,
        num_heads,
        q_batch,
        q_time,
        q_head,
        Q_ALIGN,
        ROWS,
        GATHERED,
    )
    k0, k1, k2 = load_coefficients(
        coefficients, scale, sequence, head, num_heads, HAS_COEFFICIENTS, TERM0, TERM1, TERM2
    )
    common, k2 = common_factor(k2, TERM0, TERM1)
    d0, d1, d2 = direct_terms(
        k0, k1, k2, coefficients, scale, sequence, head, num_heads, HAS_COEFFICIENTS, TERM0, TERM1, TERM2, SQUARE
    )
    d = tl.arange(0, DP)
    i = tl.arange(0, FP)
    queries = load_rows(q, row, real, q_time, F, FP, OPERAND, EVEN)
    precise = queries.to(tl.float32)
    at_output = row * num_heads
    grads = load_rows(dout + at_query * D, at_output, real, D, D, DP, OPERAND, EVEN)
    inverse = real.to(tl.float32)
    estimate = tl.zeros((ROWS,), tl.float32)
    keep = inverse
    if NORMALIZE:
        divisor = tl.load(normalizer + at_query + at_output, mask=real, other=1.0)
        if DROP:
            keep = tl.where(divisor < 0, 0.0, 1.0)
            divisor = tl.abs(divisor)
        inverse = 1.0 / divisor
        outputs = load_rows(out + at_query * D, at_output, real, D, D, DP, tl.float32, EVEN)
        estimate = -tl.sum(grads.to(tl.float32) * outputs, axis=1) * inverse

    # Sums over keys of: sim · dout·v (``weighed``), half its gradient given the estimate (``direct``), half that of the
    # normaliser (``through``). For the coefficients: of s^d · dout·v, and of s^d.
    weighed = tl.zeros((ROWS,), tl.float32)
    direct = tl.zeros((ROWS, FP), tl.float32)
    through = tl.zeros((ROWS, FP), tl.float32)
    share0 = tl.zeros((ROWS,), tl.float32)
    share1 = tl.zeros((ROWS,), tl.float32)
    share2 = tl.zeros((ROWS,), tl.float32)
    sum0 = tl.zeros((ROWS,), tl.float32)
    sum1 = tl.zeros((ROWS,), tl.float32)
    sum2 = tl.zeros((ROWS,), tl.float32)

    if HAS_STATE:
        FEATURES: tl.constexpr = TERM2 * FP * FP + TERM1 * FP + TERM0
        LINEAR: tl.constexpr = TERM2 * FP * FP
        CONSTANT: tl.constexpr = LINEAR + TERM1 * FP
        slot = state_slot(
            chunk,
            sequence,
            chunk_start,
            sequence_start,
            sequence_end,
            num_keys,
            CHUNK,
            PACKED,
            CAUSAL,
            False,
            HAS_INITIAL,
        )
        prefix += (slot * num_key_heads + key_head) * (FEATURES * DP)
        prefix_moments += (slot * num_key_heads + key_head) * FEATURES
        if TERM2:
            half = tl.zeros((ROWS, FP), tl.float32)
            for group in tl.static_range(FP // NUM_I):
                some = load_columns(q, row, real, q_time, group * NUM_I, NUM_I, F, FP, OPERAND, EVEN)
                feature = group * (NUM_I * FP) + tl.arange(0, NUM_I * FP)
                state = tl.load(prefix + feature[:, None] * DP + d[None, :])
                dfeatures = tl.dot(grads, tl.trans(state), input_precision=PRECISION)
                half += contract(some, dfeatures, ROWS, NUM_I, FP)
            half *= keep[:, None]
            share2 = tl.sum(half * precise, axis=1)
            weighed += share2 * k2
            direct += half * (inverse * k2)[:, None]
            if NORMALIZE:
                square = tl.load(prefix_moments + i[:, None] * FP + i[None, :])
                half = dot_precisely(queries, square, PRECISION) * keep[:, None]
                sum2 = tl.sum(half * precise, axis=1)
                through += half * k2
        if TERM1:
            state = tl.load(prefix + (LINEAR + i)[:, None] * DP + d[None, :])
            linear = tl.dot(grads, tl.trans(state), input_precision=PRECISION) * keep[:, None]
            share1 = tl.sum(linear * precise, axis=1)
            weighed += share1 * k1
            direct += linear * (inverse * (0.5 * k1))[:, None]
            if NORMALIZE:
                linear = tl.load(prefix_moments + LINEAR + i)[None, :] * keep[:, None]
                sum1 = tl.sum(linear * precise, axis=1)
                through += linear * (0.5 * k1)
        if TERM0:
            constant = tl.load(prefix + CONSTANT * DP + d).to(tl.float32)
            share0 = tl.sum(grads.to(tl.float32) * constant[None, :], axis=1) * keep
            weighed += share0 * k0
            sum0 = tl.load(prefix_moments + CONSTANT) * keep
        direct += through * estimate[:, None]

    if CAUSAL:
        chunk_end = tl.minimum(chunk_start + CHUNK, sequence_end)
        if not GATHERED:
            chunk_end = tl.minimum(chunk_end, end)
        k += batch * k_batch + head_offset(key_head, k_head, K_ALIGN) + chunk_start.to(tl.int64) * k_time
        v += batch * v_batch + head_offset(key_head, v_head, V_ALIGN) + chunk_start.to(tl.int64) * v_time
        key_mask += batch * num_keys + chunk_start
        column = tl.arange(0, COLUMNS)
        for first in range(0, chunk_end - chunk_start, COLUMNS):
            key = first + column
            visible = key < chunk_end - chunk_start
            keys, values, visible = load_keys(
                k, v, key_mask, key, visible, k_time, v_time, F, FP, D, DP, OPERAND, HAS_MASK, EVEN
            )
            seen = key[None, :] <= (position - chunk_start)[:, None]
            if TERM0:
                seen = seen & visible[None, :]
            s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
            if COEFFICIENT_GRADS or not (TERM0 and TERM1):  # else all that comes of it is masked
                s = tl.where(seen, s, 0.0)
            dsim = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
            sim, half_slope = similarity_and_half_slope(s, seen, d0, d1, d2, TERM0, TERM1, TERM2, SQUARE, CLAMP)
            if COEFFICIENT_GRADS:
                share0, share1, share2, sum0, sum1, sum2 = add_coefficient_sums(
                    share0, share1, share2, sum0, sum1, sum2, s, dsim, seen, 1, TERM0, TERM1, TERM2
                )
            if NORMALIZE:
                weighed += tl.sum(sim * dsim, axis=1)
                through = tl.dot(half_slope.to(OPERAND), keys, through, input_precision=PRECISION)
            ds = (dsim * inverse[:, None] + estimate[:, None]) * half_slope
            direct = tl.dot(ds.to(OPERAND), keys, direct, input_precision=PRECISION)

    exact = estimate
    if NORMALIZE:
        exact = -weighed * common * inverse * inverse
        direct += through * (exact - estimate)[:, None]
        tl.store(dnormalizer + at_query + at_output, exact, mask=real)
        tl.store(factors + at_query + at_output, inverse * keep, mask=real)
    store_rows(dq + at_query * F, at_output, real, direct * (2.0 * common), F, F, FP, EVEN)
    if COEFFICIENT_GRADS:
        to = dcoefficients + (tile.to(tl.int64) * num_heads + head) * (TERM0 + TERM1 + TERM2)
        store_coefficient_grads(
            to, share0, share1, share2, sum0, sum1, sum2, inverse, exact, scale, TERM0, TERM1, TERM2
        )
