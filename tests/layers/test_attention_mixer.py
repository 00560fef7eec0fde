"""Softmax attention and its cache against the formula, one query at a time, in float64."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from rebased.layers.attention import Attention
from rebased.layers.kv_cache import KVCache
from rebased.layers.rotary import rotate
from rebased.ops import softmax

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"num_heads": 4},
    "grouped": {"num_heads": 4, "num_key_heads": 2},
    "window": {"num_heads": 2, "window": 4},
    "itself only": {"num_heads": 2, "window": 1},
    "rotary": {"num_heads": 2, "rotary": True},
    "everything": {"num_heads": 4, "num_key_heads": 1, "window": 3, "rotary": True, "rotary_base": 100.0},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)

B, T, D_MODEL = 3, 11, 24


def layer(variant: str, seed: int = 0) -> Attention:
    torch.manual_seed(seed)
    return Attention(D_MODEL, **VARIANTS[variant]).double()


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_mask(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def turned(x: Tensor, position: int, base: float) -> Tensor:
    """(…, D) as D / 2 complex numbers, each multiplied with one of modulus 1."""
    half = x.shape[-1] // 2
    angles = torch.tensor([position / base ** (i / half) for i in range(half)], dtype=torch.float64)
    product = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([product.real, product.imag], dim=-1)


def one_by_one(mixer: Attention, x: Tensor, key_mask: Tensor) -> Tensor:
    """The definition: each real token with a softmax of its own; masked tokens get the output's bias."""
    H, D = mixer.num_heads, mixer.head_dim
    group = H // mixer.num_key_heads
    rows = []
    for b, t in itertools.product(range(x.shape[0]), range(x.shape[1])):
        tokens = [s for s in range(t + 1) if key_mask[b, s]]
        heads = []
        for h in range(H):
            if not key_mask[b, t]:
                heads.append(x.new_zeros(D))
                continue
            q, k, v = (
                x[b] @ proj.weight[n * D : (n + 1) * D].T + (0 if proj.bias is None else proj.bias[n * D : (n + 1) * D])
                for proj, n in ((mixer.q_proj, h), (mixer.k_proj, h // group), (mixer.v_proj, h // group))
            )
            keys = [k[s] for s in tokens]
            query = q[t]
            if mixer.rotary:
                keys = [turned(key, n, mixer.rotary_base) for n, key in enumerate(keys)]
                query = turned(query, len(tokens) - 1, mixer.rotary_base)
            first = 0 if mixer.window is None else max(0, len(tokens) - mixer.window)
            weights = torch.stack([(key @ query / D**0.5).exp() for key in keys[first:]])
            heads.append(weights @ torch.stack([v[s] for s in tokens[first:]]) / weights.sum())
        rows.append(torch.cat(heads))
    out = torch.stack(rows).reshape(x.shape) @ mixer.out_proj.weight.T
    return out if mixer.out_proj.bias is None else out + mixer.out_proj.bias


def with_grads(mixer: Attention, y: Tensor, x: Tensor, weights: Tensor) -> dict[str, Tensor]:
    inputs = {"x": x, **dict(mixer.named_parameters())}
    grads = torch.autograd.grad((y * weights).sum(), list(inputs.values()))
    return {"y": y, **{f"d{name}": g for name, g in zip(inputs, grads, strict=True)}}


def assert_same(actual: Any, expected: Any, rtol: float = 1e-12) -> None:
    """Each tensor within ``rtol`` of the expected one's largest entry, or of 1."""
    actual, expected = (torch.utils._pytree.tree_leaves(x) for x in (actual, expected))
    for x, want in zip(actual, expected, strict=True):
        size = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        torch.testing.assert_close(x, want, rtol=0, atol=rtol * size)


def in_pieces(
    mixer: Attention, x: Tensor, lengths: Sequence[int], key_mask: Tensor | None = None
) -> tuple[Tensor, KVCache]:
    state: Any = mixer.init_state(x.shape[0], dtype=x.dtype)
    outputs = []
    for end, length in zip(itertools.accumulate(lengths), lengths, strict=True):
        part = slice(end - length, end)
        y, state = mixer(x[:, part], state=state, key_mask=None if key_mask is None else key_mask[:, part])
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


@st.composite
def mixers(draw: st.DrawFn) -> Attention:
    num_key_heads = draw(st.integers(1, 3))
    num_heads = num_key_heads * draw(st.integers(1, 3))
    rotary = draw(st.booleans())
    head_dim = draw(st.sampled_from([2, 4, 6] if rotary else [1, 2, 3, 5]))
    torch.manual_seed(draw(st.integers(0, 100)))
    return Attention(
        num_heads * head_dim,
        num_heads=num_heads,
        num_key_heads=num_key_heads,
        qkv_bias=draw(st.booleans()),
        out_bias=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, 8)),
        rotary=rotary,
        rotary_base=draw(st.sampled_from([3.0, 10000.0])),
    ).double()


def masks(batch_size: int, seq_len: int) -> st.SearchStrategy[Tensor | None]:
    row = st.lists(st.booleans(), min_size=seq_len, max_size=seq_len)
    return st.none() | st.lists(row, min_size=batch_size, max_size=batch_size).map(torch.tensor)


@given(st.data())
@settings(max_examples=40)
def test_outputs_and_gradients_are_those_of_the_definition(data: st.DataObject) -> None:
    mixer = data.draw(mixers())
    batch_size, seq_len = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    key_mask = data.draw(masks(batch_size, seq_len))
    x = randn(batch_size, seq_len, mixer.d_model).requires_grad_()
    weights = randn(*x.shape, seed=1)
    is_real = torch.ones(x.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
    expected = with_grads(mixer, one_by_one(mixer, x, is_real), x, weights)
    assert_same(with_grads(mixer, mixer(x, key_mask=key_mask), x, weights), expected)


@given(st.data())
@settings(max_examples=60)
def test_pieces_of_any_length_give_the_whole(data: st.DataObject) -> None:
    """Masks included; what follows goes on as if masked tokens had not been there."""
    mixer = data.draw(mixers())
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    key_mask = data.draw(masks(2, sum(lengths)))
    x = randn(2, sum(lengths), mixer.d_model).requires_grad_()
    weights = randn(*x.shape, seed=1)
    y, state = in_pieces(mixer, x, lengths, key_mask)
    expected = with_grads(mixer, mixer(x, key_mask=key_mask), x, weights)
    following = randn(2, 3, mixer.d_model, seed=2)
    after, _ = mixer(following, state=state)
    assert_same(with_grads(mixer, y, x, weights), expected)
    for b in range(2):
        row = x[b : b + 1] if key_mask is None else x[b : b + 1, key_mask[b]]
        whole = mixer(torch.cat([row, following[b : b + 1]], dim=1))
        assert_same(after[b : b + 1], whole[:, -3:])


@every_variant
def test_token_by_token(variant: str) -> None:
    mixer = layer(variant)
    x = randn(B, T, D_MODEL).requires_grad_()
    weights = randn(*x.shape, seed=1)
    expected = with_grads(mixer, mixer(x), x, weights)
    assert_same(with_grads(mixer, in_pieces(mixer, x, [1] * T)[0], x, weights), expected)


@every_variant
@pytest.mark.parametrize("num_positions", [1, 5])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("stateful", [False, True])
def test_positions_asked_for(variant: str, num_positions: int, masked: bool, stateful: bool) -> None:
    """Any order, with repetitions, of either integer type."""
    mixer = layer(variant)
    x = randn(B, T, D_MODEL).requires_grad_()
    at = torch.randint(T, (B, num_positions), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    weights = randn(B, num_positions, D_MODEL, seed=1)

    def run(at: Tensor | None) -> Tensor:
        key_mask = random_mask(B, T) if masked else None
        if not stateful:
            return mixer(x, at=at, key_mask=key_mask)
        _, state = mixer(randn(B, 6, D_MODEL, seed=2), state=mixer.init_state(B, dtype=torch.float64))
        return mixer(x, at=at, key_mask=key_mask, state=state)[0]

    expected = with_grads(mixer, run(None).take_along_dim(at.long()[..., None], dim=1), x, weights)
    assert_same(with_grads(mixer, run(at), x, weights), expected)


@pytest.mark.parametrize("at", [-1, T])
def test_positions_that_are_not_there(at: int) -> None:
    with pytest.raises(ValueError, match=rf"at reaches from {at} to {at}; positions must be in 0 .. {T - 1}"):
        layer("plain")(randn(1, T, D_MODEL), at=torch.tensor([[at]]))


@every_variant
@pytest.mark.parametrize("masked", [False, True])
def test_later_tokens_change_no_bit(variant: str, masked: bool) -> None:
    mixer = layer(variant)
    x = randn(B, T, D_MODEL)
    key_mask = random_mask(B, T) if masked else None
    y = mixer(x, key_mask=key_mask)
    for t in range(T):
        other = torch.cat([x[:, : t + 1], 100 * randn(B, T - t - 1, D_MODEL, seed=1)], dim=1)
        assert torch.equal(mixer(other, key_mask=key_mask)[:, : t + 1], y[:, : t + 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 5])
def test_later_tokens_change_no_bit_of_long_sequences(dtype: torch.dtype, window: int | None) -> None:
    """More tokens than the blocks of the CPU kernel hold; with a window, blocks without a visible key."""
    torch.manual_seed(0)
    mixer = Attention(8, num_heads=2, window=window).to(dtype)
    x = torch.randn(1, 1100, 8).to(dtype)
    y = mixer(x)
    assert y.isfinite().all()
    for t in (30, 511, 512, 1050):
        other = torch.cat([x[:, : t + 1], 50 * torch.ones(1, 1100 - t - 1, 8, dtype=dtype)], dim=1)
        assert torch.equal(mixer(other)[:, : t + 1], y[:, : t + 1])


@every_variant
def test_masked_tokens_are_nowhere(variant: str) -> None:
    """Whatever they hold, and in rows without a real token too: outputs are the bias and gradients finite."""
    mixer = layer(variant)
    key_mask = random_mask(B, T)
    key_mask[1] = False
    key_mask[0, 0] = False
    x = randn(B, T, D_MODEL).where(key_mask[..., None], torch.nan).requires_grad_()
    for y in (mixer(x, key_mask=key_mask), in_pieces(mixer, x, [4, 1, 1, 5], key_mask)[0]):
        assert_same(y[~key_mask], mixer.out_proj.bias.expand((~key_mask).sum(), -1))
        results = with_grads(mixer, y, x, randn(*y.shape, seed=1))
        assert all(value.isfinite().all() for value in results.values())
        assert not results["dx"][~key_mask].any()


@every_variant
def test_packed_sequences_of_different_histories(variant: str) -> None:
    """A state for each; sequences may be empty, at first or later."""
    mixer = layer(variant)
    parts = [[4, 0, 1, 8], [1, 3, 0, 5], [2, 2, 2, 2]]
    state: Any = mixer.init_state(4, dtype=torch.float64)
    history = [randn(1, 0, D_MODEL) for _ in range(4)]
    for seed, lengths in enumerate(parts):
        x = randn(1, sum(lengths), D_MODEL, seed=seed)
        borders = torch.tensor([0, *itertools.accumulate(lengths)])
        y, state = mixer(x, state=state, cu_seqlens=borders)
        for n, (start, end) in enumerate(itertools.pairwise(borders.tolist())):
            history[n] = torch.cat([history[n], x[:, start:end]], dim=1)
            if end > start:
                assert_same(y[:, start:end], mixer(history[n])[:, start - end :])
    assert state.count.tolist() == [sum(lengths) for lengths in zip(*parts, strict=True)]


def test_rotation_is_a_complex_product() -> None:
    x, positions = randn(2, 5, 3, 8), torch.tensor([[0, 1, 2, 3, 4], [7, 0, 1000, 3, 3]])
    rows = [turned(x[b, t], int(positions[b, t]), 50.0) for b in range(2) for t in range(5)]
    assert_same(rotate(x, positions, base=50.0), torch.stack(rows).reshape(x.shape))


def test_rotated_products_depend_on_distance_only() -> None:
    q, k = randn(1, 1, 1, 6), randn(1, 1, 1, 6, seed=1)
    products = [
        (rotate(q, torch.tensor([[start + 5]])) * rotate(k, torch.tensor([[start]]))).sum() for start in (0, 3, 1000)
    ]
    assert_same(products[1:], [products[0]] * 2)


def test_rotation_in_bfloat16_is_rounded_once() -> None:
    x, positions = randn(1, 4, 2, 6).bfloat16(), torch.tensor([[0, 300, 3001, 30_003]])
    assert torch.equal(rotate(x, positions), rotate(x.float(), positions).bfloat16())


def test_dropout_in_training_only() -> None:
    """Weights are dropped and the others scaled: on average nothing changes. 5 standard errors; the seed is fixed."""
    torch.manual_seed(0)
    mixer = Attention(6, num_heads=2, dropout=0.3).double()
    x = randn(1, 5, 6)
    plain = mixer.eval()(x)
    assert torch.equal(plain, mixer(x))
    draws = mixer.train()(x.expand(4000, -1, -1))
    error = draws.std(dim=0) / 4000**0.5
    assert (draws.std(dim=0) > 0.01).all()
    assert ((draws.mean(dim=0) - plain[0]).abs() < 5 * error).all()


def test_window_of_the_cache() -> None:
    """The last real tokens stay, wherever padding stands; what is dropped leaves memory."""
    mixer = layer("window")
    key_mask = torch.ones(2, T, dtype=torch.bool)
    key_mask[0, 2:] = False
    key_mask[1, -4:] = False
    for mask in (None, key_mask):
        _, state = in_pieces(mixer, randn(2, T, D_MODEL), [T - 1, 1], mask)
        assert state.keys.shape[1] == 3
        assert state.keys.untyped_storage().nbytes() == state.keys.numel() * 8
    assert state.positions.tolist() == [[-1, 0, 1], [4, 5, 6]]
    assert state.count.tolist() == [2, 7]


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_bytes(variant: str, dtype: torch.dtype) -> None:
    mixer = layer(variant).to(dtype)
    state: Any = mixer.init_state(2, dtype=dtype)
    for num_tokens in range(7):
        assert state.nbytes == 2 * mixer.state_bytes(num_tokens, dtype=dtype)
        _, state = mixer(torch.zeros(2, 1, D_MODEL, dtype=dtype), state=state)


def test_joined_caches_are_padded_on_the_left() -> None:
    mixer = layer("plain")
    states = [in_pieces(mixer, randn(n, n, D_MODEL, seed=n), [n])[1] for n in (1, 3, 2)]
    joined = KVCache.join([*states, mixer.init_state(0, dtype=torch.float64)])
    assert joined.positions.tolist() == [[-1, -1, 0], *[[0, 1, 2]] * 3, *[[-1, 0, 1]] * 2]
    assert joined.count.tolist() == [1, 3, 3, 3, 2, 2]
    assert_same(joined.values[4:, 1:], states[2].values)
    alike = KVCache.join([states[0], states[0]])
    assert alike.positions is None
    assert alike.keys.shape[:2] == (2, 1)


def test_masks_are_made_only_where_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole passes and first pieces are left to the kernel's own causal mask, and a single token sees everything.

    No query sees nothing: some versions of torch make that NaN.
    """
    calls = []

    def spy(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool, **options: Any) -> Any:
        calls.append((q.shape[1:3], None if mask is None else tuple(mask.shape), causal))
        assert mask is None or mask.any(dim=-1).all()
        return sdpa(q, k, v, mask, dropout, causal, **options)

    sdpa = softmax.scaled_dot_product_attention
    monkeypatch.setattr(softmax, "scaled_dot_product_attention", spy)
    mixer = layer("grouped")
    x = randn(B, T, D_MODEL)
    mixer(x)
    in_pieces(mixer, x, [4, 1, T - 5])
    mixer(x, at=torch.zeros(B, 1, dtype=torch.int64))
    mixer(x, key_mask=random_mask(B, T))
    assert calls == [
        ((4, T), None, True),
        ((4, 4), None, True),
        ((2, 2), None, False),  # two queries for each of two key heads
        ((4, T - 5), (1, 1, T - 5, T), False),
        ((2, 2), (B, 1, 1, T), False),
        ((4, T), (B, 1, T, T), False),
    ]


@pytest.mark.parametrize("variant", ["grouped", "everything"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("num_positions", [None, 1, 4])
@pytest.mark.parametrize("shared", [False, True])
def test_replicas(variant: str, masked: bool, num_positions: int | None, shared: bool) -> None:
    """torch.vmap over parameters, and over inputs and masks or not, with autograd in it or around it."""
    mixers = [layer(variant, seed) for seed in range(3)]
    params, _ = stack_module_state(mixers)
    xs, masks = randn(3, B, T, D_MODEL), random_mask(3, B, T)
    positions = torch.randint(T, (3, B, num_positions or 1), generator=torch.Generator().manual_seed(0))
    if shared:
        xs, masks, positions = xs[0], masks[0], positions[0]

    def loss(params: dict[str, Tensor], x: Tensor, key_mask: Tensor, at: Tensor) -> Tensor:
        options = {"key_mask": key_mask if masked else None, "at": None if num_positions is None else at}
        return functional_call(mixers[0], params, (x,), options).square().mean()

    dims = (0, *[None if shared else 0] * 3)
    looped = []
    for n, mixer in enumerate(mixers):
        own = [x if shared else x[n] for x in (xs, masks, positions)]
        value = loss(dict(mixer.named_parameters()), *own)
        looped.append((value, torch.autograd.grad(value, list(mixer.parameters()))))
    values = vmap(loss, dims)(params, xs, masks, positions)
    outside = torch.autograd.grad(values.sum(), list(params.values()))
    inside = vmap(grad(loss), dims)(params, xs, masks, positions)
    assert_same(values, torch.stack([value for value, _ in looped]))
    expected = [torch.stack(grads) for grads in zip(*(grads for _, grads in looped), strict=True)]
    assert_same(outside, expected)
    assert_same(list(inside.values()), expected)


@pytest.mark.parametrize("masked", [False, True])
def test_no_replicas(masked: bool) -> None:
    mixer = layer("grouped")
    params, _ = stack_module_state([mixer])
    none = {name: x[:0] for name, x in params.items()}

    def loss(params: dict[str, Tensor], x: Tensor, key_mask: Tensor) -> Tensor:
        return functional_call(mixer, params, (x,), {"key_mask": key_mask if masked else None}).sum()

    inputs = none, randn(0, B, T, D_MODEL), random_mask(0, B, T)
    assert vmap(loss)(*inputs).shape == (0,)
    assert {name: x.shape for name, x in vmap(grad(loss))(*inputs).items()} == {
        name: x.shape for name, x in none.items()
    }


@pytest.mark.usefixtures("_forget_compilations")
def test_replicas_compiled_for_any_number() -> None:
    """A mask that all share makes heads of replicas. That keys have fewer was then a symbol, which torch refused."""
    mixer, mask = layer("grouped"), random_mask(B, T)

    def run(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(mixer, params, (x,), {"key_mask": mask})

    compiled = torch.compile(vmap(run), fullgraph=True, backend="aot_eager")
    for number in (3, 2):
        params, _ = stack_module_state([layer("grouped", seed) for seed in range(number)])
        xs = randn(number, B, T, D_MODEL)
        for x in (*params.values(), xs):
            torch._dynamo.maybe_mark_dynamic(x, 0)
        assert_same(compiled(params, xs), vmap(run)(params, xs))


def test_replicas_drop_different_weights() -> None:
    mixer = Attention(6, dropout=0.5).double()
    params, _ = stack_module_state([mixer, mixer])

    def run(params: dict[str, Tensor], randomness: str) -> Tensor:
        x = randn(1, 9, 6)
        return vmap(lambda own: functional_call(mixer, own, (x,)), randomness=randomness)(params)

    first, second = run(params, "different")
    assert not torch.equal(first, second)
    with pytest.raises(RuntimeError, match="dropout under vmap needs randomness='different', got 'error'"):
        run(params, "error")


@every_variant
def test_autocast(variant: str) -> None:
    mixer = layer(variant).float()
    x = randn(B, T, D_MODEL).float()
    expected = mixer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = in_pieces(mixer, x, [4, 1, T - 5])
    assert state.keys.dtype == state.values.dtype == torch.bfloat16
    assert ((y.float() - expected).norm() / expected.norm()).item() < 2e-2


def test_parameters() -> None:
    mixer = Attention(24, num_heads=4)
    assert {name: tuple(p.shape) for name, p in mixer.named_parameters()} == {
        "q_proj.weight": (24, 24),
        "q_proj.bias": (24,),
        "k_proj.weight": (24, 24),
        "k_proj.bias": (24,),
        "v_proj.weight": (24, 24),
        "v_proj.bias": (24,),
        "out_proj.weight": (24, 24),
        "out_proj.bias": (24,),
    }
    slim = Attention(24, num_heads=4, num_key_heads=2, qkv_bias=False, out_bias=False)
    assert {name: tuple(p.shape) for name, p in slim.named_parameters()} == {
        "q_proj.weight": (24, 24),
        "k_proj.weight": (12, 24),
        "v_proj.weight": (12, 24),
        "out_proj.weight": (24, 24),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 5}, "num_heads=5 does not divide d_model=12; it may be 1, 2, 3, 4, 6, 12"),
        ({"num_heads": 0}, "num_heads=0 must be at least 1"),
        ({"num_heads": 4, "num_key_heads": 3}, "num_key_heads=3 does not divide num_heads=4; it may be 1, 2, 4"),
        ({"num_heads": 4, "num_key_heads": 8}, "num_key_heads=8 does not divide num_heads=4; it may be 1, 2, 4"),
        ({"num_heads": 4, "rotary": True}, "even head_dim, not 3 = 12 / 4; num_heads may be 1, 2, 3, 6"),
        ({"d_model": 9, "num_heads": 3, "rotary": True}, "even head_dim, not 3 = 9 / 3; d_model must be even"),
        ({"window": 0}, "window=0 must be at least 1"),
        ({"dropout": 1.0}, r"dropout=1.0 must be at least 0 and less than 1"),
        ({"dropout": -0.1}, r"dropout=-0.1 must be at least 0 and less than 1"),
        ({"dropout": float("nan")}, r"dropout=nan must be at least 0 and less than 1"),
        ({"rotary_base": 0.0}, r"rotary_base=0.0 must be positive and finite"),
    ],
)
def test_arguments_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attention(**({"d_model": 12} | arguments))


@pytest.mark.parametrize(
    "arguments",
    [{"num_heads": 2.0}, {"window": 2.5}, {"dropout": "0.1"}, {"dropout": True}, {"rotary": 1}, {"qkv_bias": None}],
)
def test_arguments_of_wrong_types(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(arguments))} is .*; it must be "):
        Attention(12, **arguments)
