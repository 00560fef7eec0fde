"""What belongs to a few tokens as a tuple of tensors, one for each: the only arrays of registers that Triton has."""

import triton
import triton.language as tl


@triton.jit
def before(token, end, is_real):
    """``is_real``, if the token is before the end. Triton 3.9's interpreter takes no mask with one number for all."""
    return is_real & (tl.full(is_real.shape, token, tl.int32) < end)


@triton.jit
def load_tokens(pointers, start, end, stride, place, is_real, STEPS: tl.constexpr):
    """Of STEPS tokens from ``start`` on; zero from ``end`` on."""
    pointers += tl.cast(start, tl.int64) * stride + place
    rows = ()
    for i in tl.static_range(STEPS):
        rows += (tl.load(pointers + i * stride, mask=before(start + i, end, is_real), other=0.0),)
    return rows


@triton.jit
def store_tokens(pointers, start, end, stride, place, is_real, rows, STEPS: tl.constexpr, REVERSED: tl.constexpr):
    """``REVERSED``: the first of ``rows`` is the last token's."""
    pointers += tl.cast(start, tl.int64) * stride + place
    for i in tl.static_range(STEPS):
        row = rows[STEPS - 1 - i if REVERSED else i]
        tl.store(pointers + i * stride, row.to(pointers.dtype.element_ty), mask=before(start + i, end, is_real))
