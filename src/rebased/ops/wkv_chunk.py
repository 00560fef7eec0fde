"""The sums of RWKV's average over one chunk of tokens, and their gradients, in plain torch.

Sums of exponentials are kept relative to exp(maximum). Nothing depends on which number ``maximum`` is, so no gradient
flows through its choice. Here it is a whole number near the logarithm of the denominator: differences of whole numbers
are exact, where those of running maxima would gather rounding errors over many tokens, or lose digits for large k.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rebased.ops.recurrence import linear_recurrence_, maximum_recurrence_

__all__ = ["LOWEST", "ChunkSums", "log_denominator", "weights"]

LOWEST = -1e30
"""The ``maximum`` of empty sums: finite, so that differences are, and below every k."""


class ChunkSums(NamedTuple):
    """The sums of one chunk and what they are made of, (B, C, G, M); with both sums, (B, C, 2, G, M)."""

    v: Tensor
    maximum: Tensor
    kept: Tensor
    """What of the sums before a token remains after it, (B, C, 1, G, M)."""
    entering: Tensor
    """What v of a token is multiplied with in the sums after it."""
    before: Tensor
    after: Tensor
    past: Tensor
    """What the sums before a token are multiplied with in its output; v of the token itself with ``own``."""
    own: Tensor
    normalizer: Tensor
    out: Tensor

    @classmethod
    def of(
        cls, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, key_mask: Tensor | None, first: Tensor
    ) -> "ChunkSums":
        """``first``: the state before the chunk, (B, 3, G, M), in whose dtype all is computed."""
        k, v, decay, bonus = (x.to(first.dtype) for x in (k, v, decay, bonus))
        first_sums, first_maximum = first[:, :2], first[:, 2]
        decrease = decay.expand(1, *k.shape[1:])
        if key_mask is not None:
            k = k.where(key_mask[..., None], LOWEST)
            v = v.where(key_mask[..., None], 0.0)  # not even NaN enters
            decrease = decrease.where(key_mask[..., None], 0.0)
        maximum = maximum_recurrence_(
            decrease.clone(memory_format=torch.contiguous_format),
            k.clone(memory_format=torch.contiguous_format),
            log_denominator(first[:, 1], first_maximum),
        ).ceil_()
        if key_mask is not None:
            seen = key_mask.cumsum(dim=1) > 0
            maximum = maximum.where(seen[..., None], first_maximum[:, None])
        maximum_before = _shifted(first_maximum, maximum)
        kept = (maximum_before - maximum).sub_(decrease).exp_()[:, :, None]
        entering = (k - maximum).exp_()
        if key_mask is not None:
            entering.masked_fill_(~key_mask[..., None], 0.0)
        after = torch.stack([entering * v, entering], dim=2)
        linear_recurrence_(kept.clone(), after, first_sums)
        before = _shifted(first_sums, after)
        past, own = weights(k, bonus, maximum_before)
        normalizer = past * before[:, :, 1] + own
        out = (past * before[:, :, 0]).addcmul_(own, v)
        if key_mask is not None:
            normalizer.masked_fill_(~key_mask[..., None], 1.0)
            out.masked_fill_(~key_mask[..., None], 0.0)
        return cls(v, maximum, kept, entering, before, after, past, own, normalizer, out.div_(normalizer))

    def backward(
        self, dout: Tensor, dlast: Tensor, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients of k, v, decay, bonus and the sums before the chunk; ``dlast`` is that of those after it."""
        dout = dout.to(dlast.dtype)
        if key_mask is not None:
            dout = dout.where(key_mask[..., None], 0.0)
        dratio = dout / self.normalizer
        dbefore = torch.stack([dratio, -dratio * self.out], dim=2).mul_(self.past[:, :, None])
        linear_recurrence_(self.kept.clone(), dbefore, dlast, reverse=True)
        dafter = torch.cat([dbefore[:, 1:], dlast[:, None]], dim=1)
        down = dratio * self.own
        dv = torch.addcmul(down, self.entering, dafter[:, :, 0])
        dbonus = down.mul_(self.v - self.out)
        dk = torch.addcmul(dafter[:, :, 1], dafter[:, :, 0], self.v).mul_(self.entering).add_(dbonus)
        ddecay = (self.before * dafter).sum(dim=2).mul_(self.kept[:, :, 0])
        if key_mask is not None:
            ddecay.masked_fill_(~key_mask[..., None], 0.0)
        return dk, dv, -ddecay.sum(dim=(0, 1)), dbonus.sum(dim=(0, 1)), dbefore[:, 0]


def _shifted(first: Tensor, x: Tensor) -> Tensor:
    """What x is before each token, ``first`` before the first."""
    return torch.cat([first[:, None], x[:, :-1]], dim=1)


def log_denominator(denominator: Tensor, maximum: Tensor) -> Tensor:
    """Of the true sum; `LOWEST` if that is zero."""
    return (maximum.detach() + denominator.detach().log()).clamp(min=LOWEST)


def weights(k: Tensor, bonus: Tensor, maximum: Tensor) -> tuple[Tensor, Tensor]:
    """What the sums so far and v are multiplied with in the output. Only their ratio counts; the larger one is 1."""
    difference = (k - maximum) + bonus  # in this order: k may be so large that its sum with bonus loses digits
    shift = difference.detach().clamp(min=0)
    return (-shift).exp(), (difference - shift).exp()
