"""The kernel of a decoding step."""

import triton
import triton.language as tl

from rebased.ops.triton.tiles import load_coefficients, similarity


@triton.jit
def step_kernel(
    q,
    k,
    v,
    out,
    key_mask,
    coefficients,
    pairs,
    values,
    normalizer,
    count,
    values_residual,
    normalizer_residual,
    new_values,
    new_normalizer,
    new_count,
    new_values_residual,
    new_normalizer_residual,
    q_batch,
    q_head,
    k_batch,
    k_head,
    v_batch,
    v_head,
    c_batch,
    num_key_heads,
    scale,
    eps,
    GROUP: tl.constexpr,
    F: tl.constexpr,
    FP: tl.constexpr,
    E: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    TERM0: tl.constexpr,
    TERM1: tl.constexpr,
    TERM2: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COEFFICIENTS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    NORMALIZE: tl.constexpr,
    NONNEGATIVE: tl.constexpr,
    ROUNDING: tl.constexpr,
):
    """One program: one sequence and key head, with the query heads that share it.

    ``pairs`` (2, E) holds the two factors of each feature, F standing for the number 1. A program may write where it
    reads: the last of its query heads is the one that writes.
    """
    sequence = (tl.program_id(0) // num_key_heads).to(tl.int64)
    key_head = tl.program_id(0) % num_key_heads
    f = tl.arange(0, FP)
    d = tl.arange(0, DP)
    is_real = True
    # Of a token that is not real nothing is read. (As sizes: the interpreter takes no mask with one number for all.)
    num_read_k = F
    num_read_v = D
    if HAS_MASK:
        is_real = tl.load(key_mask + sequence) != 0
        num_read_k = tl.where(is_real, F, 0)
        num_read_v = tl.where(is_real, D, 0)
    k += sequence * k_batch + key_head.to(tl.int64) * k_head
    v += sequence * v_batch + key_head.to(tl.int64) * v_head
    key = tl.load(k + f, mask=f < num_read_k, other=0.0).to(tl.float32)
    value = tl.load(v + d, mask=d < num_read_v, other=0.0).to(tl.float32)
    at_state = sequence * num_key_heads + key_head
    for member in range(GROUP):
        head = key_head * GROUP + member
        q_row = q + sequence * q_batch + head.to(tl.int64) * q_head
        query = tl.load(q_row + f, mask=f < F, other=0.0).to(tl.float32)
        mine = coefficients + sequence * c_batch
        k0, k1, k2 = load_coefficients(mine, scale, 0, head, 0, HAS_COEFFICIENTS, TERM0, TERM1, TERM2)
        s = tl.sum(query * key, axis=0)
        own = similarity(s, k0, k1, k2, TERM0, TERM1, TERM2)
        if NONNEGATIVE:
            own = tl.maximum(own, 0.0)
        if HAS_MASK:
            own = tl.where(is_real, own, 0.0)
        numerator = tl.zeros((DP,), tl.float32)
        denominator = s * 0.0
        magnitude = s * 0.0
        for block in range(0, E, ROWS):
            feature = block + tl.arange(0, ROWS)
            inside = feature < E
            first = tl.load(pairs + feature, mask=inside, other=F)
            second = tl.load(pairs + E + feature, mask=inside, other=F)
            weight = tl.where(first == second, k2, 2.0 * k2)
            weight = tl.where(second == F, k1, weight)
            weight = tl.where(first == F, k0, weight)
            weight = tl.where(inside, weight, 0.0)
            x = tl.load(q_row + first, mask=first < F, other=1.0).to(tl.float32)
            y = tl.load(q_row + second, mask=second < F, other=1.0).to(tl.float32)
            features = weight * x * y
            at_feature = at_state * E + feature
            at_value = at_feature[:, None] * D + d[None, :]
            in_state = inside[:, None] & (d < D)[None, :]
            state = tl.load(values + at_value, mask=in_state, other=0.0)
            moment = tl.load(normalizer + at_feature, mask=inside, other=0.0)
            numerator += tl.sum(state * features[:, None], axis=0)
            denominator += tl.sum(moment * features, axis=0)
            magnitude += tl.sum(tl.abs(moment * features), axis=0)
            if member == GROUP - 1:
                x = tl.load(k + first, mask=inside & (first < num_read_k), other=1.0).to(tl.float32)
                y = tl.load(k + second, mask=inside & (second < num_read_k), other=1.0).to(tl.float32)
                key_features = x * y
                if HAS_MASK:
                    key_features = tl.where(is_real, key_features, 0.0)
                # By way of float64, which holds sum, residual and addend exactly enough: see KernelState.
                exact = state.to(tl.float64) + (key_features[:, None] * value[None, :]).to(tl.float64)
                exact_moment = moment.to(tl.float64) + key_features.to(tl.float64)
                if HAS_RESIDUAL:
                    residual = tl.load(values_residual + at_value, mask=in_state, other=0.0)
                    exact += residual.to(tl.float32).to(tl.float64)
                    residual = tl.load(normalizer_residual + at_feature, mask=inside, other=0.0)
                    exact_moment += residual.to(tl.float32).to(tl.float64)
                rounded = exact.to(tl.float32)
                rounded_moment = exact_moment.to(tl.float32)
                tl.store(new_values + at_value, rounded, mask=in_state)
                tl.store(new_normalizer + at_feature, rounded_moment, mask=inside)
                if HAS_RESIDUAL:
                    rest = (exact - rounded.to(tl.float64)).to(tl.float32)
                    rest_moment = (exact_moment - rounded_moment.to(tl.float64)).to(tl.float32)
                    to = new_values_residual + at_value
                    tl.store(to, rest.to(new_values_residual.dtype.element_ty), mask=in_state)
                    to = new_normalizer_residual + at_feature
                    tl.store(to, rest_moment.to(new_values_residual.dtype.element_ty), mask=inside)
        if NORMALIZE:
            if NONNEGATIVE:
                is_rounding_error = denominator <= magnitude * ROUNDING
                numerator = tl.where(is_rounding_error, 0.0, numerator)
                denominator = tl.where(is_rounding_error, 0.0, denominator)
            denominator += own
            numerator += own * value
            divisor = denominator + eps
            if NONNEGATIVE:
                divisor = tl.where(denominator > 0, divisor, float("inf"))
            numerator /= divisor
        else:
            numerator += own * value
        to = out + (sequence * num_key_heads * GROUP + head) * D + d
        tl.store(to, numerator.to(out.dtype.element_ty), mask=d < D)
    if key_head == 0:
        added = 1
        if HAS_MASK:
            added = is_real.to(tl.int64)
        tl.store(new_count + sequence, tl.load(count + sequence) + added)
