"""Softmax attention: what the other mixers are measured against."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rebased.checks import check_integer, check_positive_number
from rebased.layers.checks import check_divides, check_dropout, divisors
from rebased.layers.dropout import Dropout
from rebased.layers.kv_cache import KVCache
from rebased.layers.mixer import Mixer
from rebased.layers.rotary import rotate
from rebased.layers.rows import pick
from rebased.ops.checks import check_switches
from rebased.ops.positions import token_positions
from rebased.ops.softmax import softmax_attention, softmax_weights

__all__ = ["Attention"]


class Attention(Mixer):
    """``softmax(q kᵀ / √head_dim) v`` in each head, over the tokens up to each one, and ``out_proj`` of that.

    Query head h reads key head ``h // (num_heads // num_key_heads)``. ``window``: a token sees itself and the
    window - 1 real tokens before it. ``rotary``: queries and keys are turned by their positions. ``dropout``: of
    attention weights, in training.
    """

    state_type = KVCache
    takes_gaps = True

    def __init__(
        self,
        d_model: int,
        *,
        num_heads: int = 1,
        num_key_heads: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
        window: int | None = None,
        rotary: bool = False,
        rotary_base: float = 10000.0,
    ) -> None:
        super().__init__(d_model)
        check_integer("num_heads", num_heads)
        num_key_heads = num_heads if num_key_heads is None else num_key_heads
        check_integer("num_key_heads", num_key_heads)
        check_switches(qkv_bias=qkv_bias, out_bias=out_bias, rotary=rotary)
        check_divides("num_heads", num_heads, "d_model", d_model)
        check_divides("num_key_heads", num_key_heads, "num_heads", num_heads)
        check_dropout("dropout", dropout)
        if window is not None:
            check_integer("window", window)
        check_positive_number("rotary_base", rotary_base)
        if rotary and d_model // num_heads % 2:
            even = ", ".join(str(n) for n in divisors(d_model) if d_model // n % 2 == 0)
            way_out = f"num_heads may be {even}" if even else "d_model must be even"
            raise ValueError(
                f"rotary needs an even head_dim, not {d_model // num_heads} = {d_model} / {num_heads}; {way_out}"
            )
        self.num_heads = num_heads
        self.num_key_heads = num_key_heads
        self.head_dim = d_model // num_heads
        self.dropout = Dropout(dropout)
        self.window = window
        self.rotary = rotary
        self.rotary_base = rotary_base
        key_width = num_key_heads * self.head_dim
        self.q_proj = nn.Linear(d_model, d_model, bias=qkv_bias)
        self.k_proj = nn.Linear(d_model, key_width, bias=qkv_bias)
        self.v_proj = nn.Linear(d_model, key_width, bias=qkv_bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=out_bias)

    def mix(self, x: Tensor, state: KVCache | None, at: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        q, k, v = self._project(x, at)
        if self.rotary:
            # Without a mask and a state all sequences share their positions.
            like = x[:1] if key_mask is None and state is None else x
            positions = token_positions(key_mask, None, None if state is None else state.count, like)
            q, k = self._rotate(q, k, positions, at)
        cache = KVCache.of(k, v, key_mask)
        if state is not None:
            cache = state.append(cache)
        y = self.out_proj(self._attend(q, cache, x.shape[1], at, key_mask).flatten(2))
        if state is None:
            return y, None
        return y, cache if self.window is None else cache.last(self.window - 1)

    def attention_weights(
        self, x: Float[Tensor, "B T M"], at: Int[Tensor, "B P"] | None = None
    ) -> Float[Tensor, "B H P T"]:
        """The weight of every value in every output, without dropout: for looking at. Rows sum to 1."""
        q, k, _ = self._project(x, at)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        if self.rotary:
            q, k = self._rotate(q, k, positions, at)
        return softmax_weights(q, k, _visible(pick(positions, at), positions, self.window), causal=False)

    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> KVCache:
        keys = torch.zeros(batch_size, 0, self.num_key_heads, self.head_dim, device=device, dtype=dtype)
        return KVCache(keys, keys.clone(), torch.zeros(batch_size, device=device, dtype=torch.int64))

    def state_bytes(self, num_tokens: int, *, dtype: torch.dtype = torch.float32) -> int:
        """Of keys, values and the count; the positions that masks make necessary are not in it."""
        num_places = num_tokens if self.window is None else min(num_tokens, self.window - 1)
        per_place = 2 * self.num_key_heads * self.head_dim * dtype.itemsize
        return super().state_bytes(num_tokens, dtype=dtype) + num_places * per_place

    def _project(
        self, x: Float[Tensor, "B T M"], at: Int[Tensor, "B P"] | None
    ) -> tuple[Float[Tensor, "B P H D"], Float[Tensor, "B T Hk D"], Float[Tensor, "B T Hk D"]]:
        """Queries at ``at`` only, keys and values of all tokens."""
        q, k, v = self.q_proj(pick(x, at)), self.k_proj(x), self.v_proj(x)
        heads, key_heads = (self.num_heads, self.head_dim), (self.num_key_heads, self.head_dim)
        return q.unflatten(-1, heads), k.unflatten(-1, key_heads), v.unflatten(-1, key_heads)

    def _rotate(self, q: Tensor, k: Tensor, positions: Tensor, at: Tensor | None) -> tuple[Tensor, Tensor]:
        turned = rotate(q, pick(positions, at), base=self.rotary_base)
        return turned, rotate(k, positions, base=self.rotary_base)

    def _attend(
        self,
        q: Float[Tensor, "B P H D"],
        cache: KVCache,
        num_new: int,
        at: Int[Tensor, "B P"] | None,
        key_mask: Bool[Tensor, "B T"] | None,
    ) -> Float[Tensor, "B P H D"]:
        """Attention of queries among the last ``num_new`` places; 0 for those of masked tokens."""
        S = cache.keys.shape[1]
        window = self.window if self.window is not None and self.window < S else None
        plain = cache.positions is None and window is None
        visible, causal = None, False
        if plain and at is None and num_new == S:
            causal = S > 1
        elif not plain or num_new > 1:
            keys = torch.arange(S, device=q.device)[None] if cache.positions is None else cache.positions
            queries = pick(keys[:, S - num_new :], at)
            visible = _visible(queries, keys, window)
            if key_mask is not None:  # these queries see nothing, and a softmax of nothing is NaN
                visible = visible | (queries < 0)[..., None]
        if self.dropout.acts and self.dropout.key is not None:  # what is dropped is decided here, not in torch's kernel
            weights = self.dropout(softmax_weights(q, cache.keys, visible, causal))
            values = cache.values.repeat_interleave(self.num_heads // self.num_key_heads, dim=2)
            out = torch.einsum("bhps,bshd->bphd", weights, values)
        else:
            dropout = self.dropout.p if self.dropout.acts else 0.0
            out = softmax_attention(q, cache.keys, cache.values, visible, causal, dropout)
        if key_mask is not None:
            out = out.where(pick(key_mask, at)[..., None, None], 0.0)
        return out


def _visible(queries: Int[Tensor, "#B P"], keys: Int[Tensor, "#B S"], window: int | None) -> Bool[Tensor, "#B P S"]:
    """Which keys a query sees, by their positions: real ones, not after it, the last ``window`` of these."""
    queries, keys = queries[:, :, None], keys[:, None, :]
    visible = (keys >= 0) & (keys <= queries)
    return visible if window is None else visible & (keys > queries - window)
