"""All gradients where queries are few: a program holds those of a head and walks its keys, which are read once.

The first walk sums what the normaliser's gradient needs, the second, with keys that are still in a cache, is the rest.
"""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import (
    add_coefficient_sums,
    common_factor,
    direct_terms,
    head_offset,
    load_coefficients,
    load_keys,
    load_rows,
    similarity_and_half_slope,
    store_coefficient_grads,
    store_rows,
)


@triton.jit
def few_queries_grads_kernel(
    q,
    k,
    v,
    normalizer,
    dout,
    dq,
    dk,
    dv,
    dcoefficients,
    key_mask,
    coefficients,
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
    num_heads,
    scale,
    Q_ALIGN: tl.constexpr,
    K_ALIGN: tl.constexpr,
    V_ALIGN: tl.constexpr,
    F: tl.constexpr,
    FP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN_QUERIES: tl.constexpr,
    EVEN_KEYS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    COEFFICIENT_GRADS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SQUARE: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """One program: a sequence's head, its queries being ROWS at most; tiles are keys × queries."""
    head = tl.program_id(0) % num_heads  # neighbours in memory are neighbours in time
    sequence = tl.program_id(0) // num_heads
    batch = sequence.to(tl.int64)
    row = tl.arange(0, ROWS)
    present = row < num_queries
    position = tl.load(positions + batch * num_queries + row, mask=present, other=-1).to(tl.int32)
    q += batch * q_batch + head_offset(head, q_head, Q_ALIGN)
    k += batch * k_batch + head_offset(head, k_head, K_ALIGN)
    v += batch * v_batch + head_offset(head, v_head, V_ALIGN)
    key_mask += batch * num_keys
    at_query = batch * num_queries * num_heads + head
    at_key = batch * num_keys * num_heads + head
    k0, k1, k2 = load_coefficients(
        coefficients, scale, sequence, head, num_heads, HAS_COEFFICIENTS, TERM0, TERM1, TERM2
    )
    common, k2 = common_factor(k2, TERM0, TERM1)
    k0, k1, k2 = direct_terms(
        k0, k1, k2, coefficients, scale, sequence, head, num_heads, HAS_COEFFICIENTS, TERM0, TERM1, TERM2, SQUARE
    )
    queries = load_rows(q, row, present, q_time, F, FP, OPERAND, EVEN_QUERIES)
    grads = load_rows(dout + at_query * D, row * num_heads, present, D, D, DP, OPERAND, EVEN_QUERIES)
    inverse = present.to(tl.float32)
    if NORMALIZE:
        inverse = 1.0 / tl.load(normalizer + at_query + row * num_heads, mask=present, other=1.0)

    weight = tl.zeros((ROWS,), tl.float32)  # the normaliser's gradient
    if NORMALIZE or COEFFICIENT_GRADS:
        share0 = tl.zeros((ROWS,), tl.float32)
        share1 = tl.zeros((ROWS,), tl.float32)
        share2 = tl.zeros((ROWS,), tl.float32)
        sum0 = tl.zeros((ROWS,), tl.float32)
        sum1 = tl.zeros((ROWS,), tl.float32)
        sum2 = tl.zeros((ROWS,), tl.float32)
        for first in range(0, num_keys, COLUMNS):
            key = first + tl.arange(0, COLUMNS)
            keys, values, visible = load_keys(
                k, v, key_mask, key, key < num_keys, k_time, v_time, F, FP, D, DP, OPERAND, HAS_MASK, EVEN_KEYS
            )
            seen = key[:, None] <= position[None, :]
            if HAS_MASK:
                seen = seen & visible[:, None]
            s = tl.dot(keys, tl.trans(queries), input_precision=PRECISION)
            if COEFFICIENT_GRADS or not (TERM0 and TERM1):  # else all that comes of it is masked
                s = tl.where(seen, s, 0.0)
            dsim = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
            if NORMALIZE:
                sim, _ = similarity_and_half_slope(s, seen, k0, k1, k2, TERM0, TERM1, TERM2, SQUARE, CLAMP)
                weight += tl.sum(sim * dsim, axis=0)
            if COEFFICIENT_GRADS:
                share0, share1, share2, sum0, sum1, sum2 = add_coefficient_sums(
                    share0, share1, share2, sum0, sum1, sum2, s, dsim, seen, 0, TERM0, TERM1, TERM2
                )
        weight = -weight * common * inverse * inverse  # in this order: the square of an inverse may be out of range
        if COEFFICIENT_GRADS:
            to = dcoefficients + (batch * num_heads + head) * (TERM0 + TERM1 + TERM2)
            store_coefficient_grads(
                to, share0, share1, share2, sum0, sum1, sum2, inverse, weight, scale, TERM0, TERM1, TERM2
            )

    inverse *= common
    weight *= common
    dqueries = tl.zeros((ROWS, FP), tl.float32)  # half of them, until the end
    for first in range(0, num_keys, COLUMNS):
        key = first + tl.arange(0, COLUMNS)
        inside = key < num_keys
        keys, values, visible = load_keys(
            k, v, key_mask, key, inside, k_time, v_time, F, FP, D, DP, OPERAND, HAS_MASK, EVEN_KEYS
        )
        seen = key[:, None] <= position[None, :]
        if HAS_MASK:
            seen = seen & visible[:, None]
        s = tl.dot(keys, tl.trans(queries), input_precision=PRECISION)
        if not (TERM0 and TERM1):
            s = tl.where(seen, s, 0.0)
        dsim = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
        sim, half_slope = similarity_and_half_slope(s, seen, k0, k1, k2, TERM0, TERM1, TERM2, SQUARE, CLAMP)
        ds = ((dsim * inverse[None, :] + weight[None, :]) * half_slope).to(OPERAND)
        dvalues = tl.dot((sim * inverse[None, :]).to(OPERAND), grads, input_precision=PRECISION)
        dkeys = tl.dot(ds, queries, input_precision=PRECISION)
        dqueries = tl.dot(tl.trans(ds), keys, dqueries, input_precision=PRECISION)
        store_rows(dk + at_key * F, key * num_heads, inside, dkeys * 2.0, F, F, FP, EVEN_KEYS)
        store_rows(dv + at_key * D, key * num_heads, inside, dvalues, D, D, DP, EVEN_KEYS)
    store_rows(dq + at_query * F, row * num_heads, present, dqueries * 2.0, F, F, FP, EVEN_QUERIES)
