"""Softmax attention: what the other mixers are measured against."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch._C import _functorch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, pad, scaled_dot_product_attention

from rebased.layers.mixer import Mixer, check_size
from rebased.layers.rotary import rotate
from rebased.layers.states import MixerState
from rebased.ops.checks import check_switches, checked_positions
from rebased.ops.positions import token_counts, token_positions

__all__ = ["Attention", "KVCache"]


@dataclass(frozen=True, eq=False)
class KVCache(MixerState):
    """Keys (rotated, where the layer does so) and values of all tokens, or of as many as a window needs."""

    keys: Float[Tensor, "B S Hk D"]
    values: Float[Tensor, "B S Hk D"]
    count: Int[Tensor, " B"]
    """Real tokens so far, those that are no longer kept included."""
    positions: Int[Tensor, "B S"] | None = None
    """The number of real tokens before each one, -1 in places without a real token.

    None says that there is no such place, so that no mask is needed: the last S tokens are here, in order.
    """

    @classmethod
    def of(
        cls, keys: Float[Tensor, "B S Hk D"], values: Float[Tensor, "B S Hk D"], key_mask: Bool[Tensor, "B S"] | None
    ) -> Self:
        """Of the first tokens of a sequence."""
        count = token_counts(key_mask, None, keys)
        positions = None if key_mask is None else token_positions(key_mask, None, None, keys).where(key_mask, -1)
        return cls(keys, values, count, positions)

    def tensors(self) -> dict[str, Tensor]:
        return {name: x for name, x in super().tensors().items() if x is not None}

    def written_positions(self) -> Int[Tensor, "B S"]:
        """``positions``, also where they are None."""
        if self.positions is not None:
            return self.positions
        S = self.keys.shape[1]
        return self.count[:, None] - S + torch.arange(S, device=self.count.device)

    def append(self, new: Self) -> Self:
        """Both, in the dtype of the new keys. The positions of ``new`` begin with 0."""
        positions = None
        if self.positions is not None or new.positions is not None:
            following = new.written_positions()
            following = (following + self.count[:, None]).where(following >= 0, -1)
            positions = torch.cat([self.written_positions(), following], dim=1)
        return type(self)(
            torch.cat([self.keys.to(new.keys.dtype), new.keys], dim=1),
            torch.cat([self.values.to(new.values.dtype), new.values], dim=1),
            self.count + new.count,
            positions,
        )

    def last(self, num_places: int) -> Self:
        """At most so many places, with the last real tokens."""
        start = self.keys.shape[1] - num_places
        if start <= 0:
            return self
        if self.positions is None:
            # Copies: a view would keep all of the sequence in memory.
            return type(self)(self.keys[:, start:].clone(), self.values[:, start:].clone(), self.count)
        order = self.positions.argsort(dim=1)[:, start:]  # places without a real token come first
        keys, values = (x.take_along_dim(order[..., None, None], dim=1) for x in (self.keys, self.values))
        return type(self)(keys, values, self.count, self.positions.take_along_dim(order, dim=1))

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """The states of several batches as those of one; shorter ones are padded on the left."""
        longest = max(state.keys.shape[1] for state in states)
        padded = [state._pad(longest) for state in states]
        if any(state.positions is not None for state in padded):
            padded = [cls(x.keys, x.values, x.count, x.written_positions()) for x in padded]
        return super().join(padded)

    def _pad(self, num_places: int) -> Self:
        missing = num_places - self.keys.shape[1]
        if missing == 0:
            return self
        keys, values = (pad(x, (0, 0, 0, 0, missing, 0)) for x in (self.keys, self.values))
        return type(self)(keys, values, self.count, pad(self.written_positions(), (missing, 0), value=-1))


class Attention(Mixer):
    """``softmax(q kᵀ / √head_dim) v`` in each head, over the tokens up to each one, and ``out_proj`` of that.

    Query head h reads key head ``h // (num_heads // num_key_heads)``. ``window``: a token sees itself and the
    window - 1 real tokens before it. ``rotary``: queries and keys are turned by their positions. ``dropout``: of
    attention weights, in training.
    """

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
        check_size("num_heads", num_heads)
        num_key_heads = num_heads if num_key_heads is None else num_key_heads
        check_size("num_key_heads", num_key_heads)
        check_switches(qkv_bias=qkv_bias, out_bias=out_bias, rotary=rotary)
        _check_divides("num_heads", num_heads, "d_model", d_model)
        _check_divides("num_key_heads", num_key_heads, "num_heads", num_heads)
        _check_number("dropout", dropout)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be at least 0 and less than 1")
        if window is not None:
            check_size("window", window)
        _check_number("rotary_base", rotary_base)
        if not 0 < rotary_base < float("inf"):
            raise ValueError(f"rotary_base={rotary_base} must be positive and finite")
        if rotary and d_model // num_heads % 2:
            even = ", ".join(str(n) for n in _divisors(d_model) if d_model // n % 2 == 0)
            way_out = f"num_heads may be {even}" if even else "d_model must be even"
            raise ValueError(
                f"rotary needs an even head_dim, not {d_model // num_heads} = {d_model} / {num_heads}; {way_out}"
            )
        self.num_heads = num_heads
        self.num_key_heads = num_key_heads
        self.head_dim = d_model // num_heads
        self.dropout = dropout
        self.window = window
        self.rotary = rotary
        self.rotary_base = rotary_base
        self.qkv_proj = nn.Linear(d_model, (num_heads + 2 * num_key_heads) * self.head_dim, bias=qkv_bias)
        self.out_proj = nn.Linear(d_model, d_model, bias=out_bias)

    def mix(self, x: Tensor, state: KVCache | None, at: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Any]:
        if key_mask is not None:
            x = x.where(key_mask[..., None], 0.0)  # a weight of 0 would not hide NaN
        if at is not None:
            at = checked_positions(at, x.shape[1], "at")
        q, k, v = self._project(x, at)
        if self.rotary:
            # Without a mask and a state all sequences share their positions.
            like = x[:1] if key_mask is None and state is None else x
            positions = token_positions(key_mask, None, None if state is None else state.count, like)
            q = rotate(q, _pick(positions, at), base=self.rotary_base)
            k = rotate(k, positions, base=self.rotary_base)
        cache = KVCache.of(k, v, key_mask)
        if state is not None:
            cache = state.append(cache)
        y = self.out_proj(self._attend(q, cache, x.shape[1], at, key_mask).flatten(2))
        if state is None:
            return y, None
        return y, cache if self.window is None else cache.last(self.window - 1)

    def init_state(
        self, batch_size: int, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> KVCache:
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
        sizes = [self.num_heads * self.head_dim, 2 * self.num_key_heads * self.head_dim]
        if at is None:
            q, kv = self.qkv_proj(x).split(sizes, dim=-1)
        else:
            weights = self.qkv_proj.weight.split(sizes)
            biases = (None, None) if self.qkv_proj.bias is None else self.qkv_proj.bias.split(sizes)
            q = linear(x.take_along_dim(at[..., None], dim=1), weights[0], biases[0])
            kv = linear(x, weights[1], biases[1])
        k, v = kv.unflatten(-1, (2, self.num_key_heads, self.head_dim)).unbind(2)
        return q.unflatten(-1, (self.num_heads, self.head_dim)), k, v

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
            queries = _pick(keys[:, S - num_new :], at)
            visible = _visible(queries, keys, window)
            if key_mask is not None:  # these queries see nothing, and a softmax of nothing is NaN
                visible = visible | (queries < 0)[..., None]
        out = _softmax_attention(q, cache.keys, cache.values, visible, causal, self.dropout if self.training else 0.0)
        if key_mask is not None:
            out = out.where(_pick(key_mask, at)[..., None, None], 0.0)
        return out


def _check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; it must be a number")


def _check_divides(name: str, value: int, whole_name: str, whole: int) -> None:
    if whole % value:
        divisors = ", ".join(map(str, _divisors(whole)))
        raise ValueError(f"{name}={value} does not divide {whole_name}={whole}; it may be {divisors}")


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if n % i == 0]


def _pick(x: Tensor, at: Int[Tensor, "B P"] | None) -> Tensor:
    """(B, T) or (1, T) at checked positions, or all of it."""
    return x if at is None else x.take_along_dim(at, dim=1)


def _visible(queries: Int[Tensor, "#B P"], keys: Int[Tensor, "#B S"], window: int | None) -> Bool[Tensor, "#B P S"]:
    """Which keys a query sees, by their positions: real ones, not after it, the last ``window`` of these."""
    queries, keys = queries[:, :, None], keys[:, None, :]
    visible = (keys >= 0) & (keys <= queries)
    return visible if window is None else visible & (keys > queries - window)


def _softmax_attention(
    q: Float[Tensor, "B P H D"],
    k: Float[Tensor, "B S Hk D"],
    v: Float[Tensor, "B S Hk D"],
    visible: Bool[Tensor, "#B P S"] | None,
    causal: bool,
    dropout: float,
) -> Float[Tensor, "B P H D"]:
    num_heads, num_key_heads = q.shape[2], k.shape[2]
    mask = None if visible is None else visible[:, None]
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if q.shape[1] == 1:
        # The queries that share a key head stand beside each other like tokens: keys are read once.
        grouped = q.unflatten(2, (num_key_heads, -1)).squeeze(1)
        return _OPERATOR(grouped, k, v, mask, causal, dropout).flatten(1, 2)[:, None]
    if mask is not None and num_key_heads != num_heads:
        # The memory-efficient CUDA kernel takes masks, but not fewer key heads.
        k, v = (x.repeat_interleave(num_heads // num_key_heads, dim=1) for x in (k, v))
    return _OPERATOR(q.transpose(1, 2), k, v, mask, causal, dropout).transpose(1, 2)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float) -> Tensor:
    """For q (B, H, P, D), k and v (B, Hk, S, D) and a mask (1 or B, 1, P, S)."""
    grouped = q.shape[1] != k.shape[1]
    if _vmap_is_left():
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(q, k, v, mask, dropout, causal, enable_gqa=grouped)
    return scaled_dot_product_attention(q, k, v, mask, dropout, causal, enable_gqa=grouped)


def _vmap_is_left() -> bool:
    """Whether this is torch.func.grad inside vmap: the fused kernels' backward passes have no batching rule."""
    stack = _functorch.get_interpreter_stack() or []
    return any(level.key() == _functorch.TransformType.Vmap for level in stack)


def _attend_mapped(
    info: Any, in_dims: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, dropout: float
) -> tuple[Tensor, int]:
    """Replicas as a larger batch, or as more heads where they share a mask: it need not be copied then."""
    if dropout and info.randomness != "different":
        raise RuntimeError(f"dropout under vmap needs randomness='different', got {info.randomness!r}")
    N = info.batch_size
    axis = 0 if mask is None or in_dims[3] is not None else 1

    def fold(x: Tensor, dim: int | None) -> Tensor:
        x = x.expand(N, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.movedim(0, axis).flatten(axis, axis + 1)

    q, k, v = (fold(x, dim) for x, dim in zip((q, k, v), in_dims[:3], strict=True))
    if mask is not None and axis == 0:
        mask = mask.movedim(in_dims[3], 0)
        mask = mask.expand(N, q.shape[0] // N, *mask.shape[2:]).flatten(0, 1)
    out = _OPERATOR(q, k, v, mask, causal, dropout)
    return out.unflatten(axis, (N, q.shape[axis] // N)), axis


# Torch's own batching rules for scaled_dot_product_attention lack the CPU kernel and masks that all replicas share
# (torch 2.13). An operator that is a composite to autograd and compilers, but has a rule, makes replicas a batch.
_LIBRARY = torch.library.Library("rebased", "FRAGMENT")
_LIBRARY.define("softmax_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float dropout) -> Tensor")
_LIBRARY.impl("softmax_attention", _attend, "CompositeImplicitAutograd")
torch.library.register_vmap("rebased::softmax_attention", _attend_mapped, lib=_LIBRARY)
_OPERATOR = torch.ops.rebased.softmax_attention.default
