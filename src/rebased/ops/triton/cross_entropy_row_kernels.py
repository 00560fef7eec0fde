"""What a head's cross entropy does with rows of logits that lie in memory; one program has one row."""

import triton
import triton.language as tl

from rebased.ops.triton.cross_entropy_kernels import LOG2_E


@triton.jit
def row_losses_kernel(logits, labels, losses, peaks, log_sums, num_words, BLOCK: tl.constexpr):
    """The greatest logit, the logarithm of the sum of exponentials relative to it, and the label's loss."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * num_words
    peak = float("-inf")
    total = 0.0
    for start in range(0, num_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        values = tl.load(logits + word, mask=word < num_words, other=float("-inf"))
        higher = tl.maximum(peak, tl.max(values, axis=0))
        total = total * tl.exp2((peak - higher) * LOG2_E) + tl.sum(tl.exp2((values - higher) * LOG2_E), axis=0)
        peak = higher
    label = tl.load(labels + row)
    is_known = (label >= 0) & (label < num_words)
    chosen = tl.load(logits + label, mask=is_known, other=float("nan"))
    log_sum = tl.log(total)
    tl.store(losses + row, peak - chosen + log_sum)
    tl.store(peaks + row, peak)
    tl.store(log_sums + row, log_sum)


@triton.jit
def row_gradients_kernel(
    logits, labels, peaks, log_sums, dlosses, dlogits, num_words, SHIFT: tl.constexpr, BLOCK: tl.constexpr
):
    """Softmax, minus 1 at the label, times the gradient of the loss and 2^SHIFT."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * num_words
    dlogits += row * num_words
    label = tl.load(labels + row)
    peak = tl.load(peaks + row)
    exponent = SHIFT - tl.load(log_sums + row) * LOG2_E
    dloss = tl.load(dlosses + row)
    for start in range(0, num_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        values = tl.load(logits + word, mask=word < num_words, other=float("-inf"))
        shares = tl.exp2((values - peak) * LOG2_E + exponent)
        shares = tl.where(word == label, shares - 2.0**SHIFT, shares) * dloss
        tl.store(dlogits + word, shares.to(dlogits.dtype.element_ty), mask=word < num_words)
