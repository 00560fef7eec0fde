"""What every mixer does alike: streaming, padding, packing, causality, outputs at chosen positions, transforms."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves as leaves_of

from mixer_cases import D_MODEL, MAX_LEN, VARIANTS, assert_same, build, stream, tokens, with_grads
from rebased.kernels import Polynomial
from rebased.layers import MIXERS
from rebased.layers.growing import MIN_ROOM
from rebased.layers.kv_cache import KVCache
from rebased.layers.mixer import Mixer

GROWING = {"attention", "hyena"}
BY_FFT = {"hyena", "h3"}

every_variant = pytest.mark.parametrize("variant", VARIANTS)


def test_every_mixer_is_here() -> None:
    assert {name for name, _ in VARIANTS.values()} == set(MIXERS)


@every_variant
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=8)
def test_pieces_equal_the_whole(variant: str, lengths: list[int]) -> None:
    mixer, x = build(variant), tokens(2, sum(lengths))
    whole = with_grads(mixer, mixer, x)
    assert_same(with_grads(mixer, lambda x: stream(mixer, x, lengths), x), whole)


@every_variant
def test_token_by_token_equals_the_whole(variant: str) -> None:
    mixer, x = build(variant), tokens(2, 13)
    whole = with_grads(mixer, mixer, x)
    assert_same(with_grads(mixer, lambda x: stream(mixer, x, [1] * 13), x), whole)


@every_variant
@given(data=st.data())
@settings(max_examples=8)
def test_masked_tokens_are_as_if_not_there(variant: str, data: st.DataObject) -> None:
    """Left padding and any other, in the first and in later pieces of a stream."""
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=2, max_size=14), label="mask"))
    border = data.draw(st.integers(1, len(mask) - 1), label="border")
    mixer, x = build(variant), tokens(1, len(mask))
    if not mask.any():
        with torch.no_grad():
            assert mixer(x, key_mask=mask[None]).isfinite().all()
        return

    def masked(x: Tensor) -> Tensor:
        return mixer(x, key_mask=mask[None])[:, mask]

    def masked_stream(x: Tensor) -> Tensor:
        first, state = mixer(x[:, :border], state=mixer.init_state(1, dtype=x.dtype), key_mask=mask[None, :border])
        second, _ = mixer(x[:, border:], state=state, key_mask=mask[None, border:])
        return torch.cat([first, second], dim=1)[:, mask]

    alone = with_grads(mixer, lambda x: mixer(x[:, mask]), x)
    assert_same(with_grads(mixer, masked, x), alone)
    assert_same(with_grads(mixer, masked_stream, x), alone)


@every_variant
@pytest.mark.parametrize("value", [1e4, float("nan"), float("inf")])
def test_masked_tokens_may_hold_anything(variant: str, value: float) -> None:
    """Outputs, gradients, and what comes after."""
    mixer, x = build(variant), tokens(2, 9)
    mask = torch.tensor([[False, False, *[True] * 7], [True] * 5 + [False, True, True, False]])

    def run(x: Tensor) -> Tensor:
        y, state = mixer(x, key_mask=mask, state=mixer.init_state(2, dtype=x.dtype))
        z, _ = mixer(tokens(2, 2, seed=1), state=state)
        return torch.cat([y[mask], z.flatten(0, 1)])

    expected = with_grads(mixer, run, x)
    actual = with_grads(mixer, run, x.masked_fill(~mask[..., None], value))
    assert_same(actual, expected, 1e-12)


@every_variant
def test_states_hold_no_more_than_they_say(variant: str) -> None:
    """A view of the last inputs would keep all of them in memory."""
    mixer = build(variant)
    with torch.no_grad():
        _, state = mixer(tokens(2, 30), state=mixer.init_state(2, dtype=torch.float64))
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in leaves_of(state)}
    room = MIN_ROOM if isinstance(state, KVCache) else 0  # for tokens to come
    assert sum(storages.values()) <= state.nbytes * (30 + room) / 30


@every_variant
def test_states_that_do_not_fit(variant: str) -> None:
    mixer, x = build(variant), tokens(1, 9)
    borders = torch.tensor([0, 4, 9])
    for batch_size, options in ((2, {}), (3, {"cu_seqlens": borders}), (1, {"cu_seqlens": borders})):
        with pytest.raises(ValueError, match=f"state has {batch_size} sequences; it must have"):
            mixer(x, state=mixer.init_state(batch_size, dtype=x.dtype), **options)
    with pytest.raises(TypeError, match=r"state is a list; it must be a \w+, as init_state makes it"):
        mixer(x, state=[])
    with pytest.raises(TypeError, match="a state's dtypes are what they are"):
        mixer.init_state(1).to(torch.bfloat16)


@every_variant
def test_nothing_in_nothing_out(variant: str) -> None:
    mixer = build(variant)
    with torch.no_grad():
        for batch_size, seq_len in ((0, 5), (2, 0)):
            x = tokens(batch_size, seq_len)
            assert mixer(x).shape == x.shape
            y, _ = mixer(x, state=mixer.init_state(batch_size, dtype=x.dtype))
            assert y.shape == x.shape


@every_variant
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(lambda counts: sum(counts) > 0))
@settings(max_examples=8)
def test_packed_sequences_do_not_see_each_other(variant: str, counts: list[int]) -> None:
    mixer, x = build(variant), tokens(1, sum(counts))
    borders = torch.tensor([0, *counts]).cumsum(0)
    at = torch.randint(0, sum(counts), (1, 5), generator=torch.Generator().manual_seed(2))

    def apart(x: Tensor) -> Tensor:
        return torch.cat([mixer(piece) for piece in x.split(counts, dim=1) if piece.shape[1]], dim=1)

    expected = with_grads(mixer, apart, x)
    assert_same(with_grads(mixer, lambda x: mixer(x, cu_seqlens=borders), x), expected)
    picked = with_grads(mixer, lambda x: apart(x)[:, at[0]], x)
    assert_same(with_grads(mixer, lambda x: mixer(x, cu_seqlens=borders, at=at), x), picked)


@every_variant
def test_packed_sequences_go_on_from_their_states(variant: str) -> None:
    mixer, counts, more = build(variant), [3, 0, 5], [2, 4, 1]
    x, y = tokens(1, sum(counts)), tokens(1, sum(more), seed=1)
    with torch.no_grad():
        borders, further = (torch.tensor([0, *n]).cumsum(0) for n in (counts, more))
        _, state = mixer(x, cu_seqlens=borders, state=mixer.init_state(3, dtype=x.dtype))
        actual, _ = mixer(y, cu_seqlens=further, state=state)
        pairs = zip(x.split(counts, dim=1), y.split(more, dim=1), strict=True)
        expected = torch.cat([mixer(torch.cat(pair, dim=1))[:, pair[0].shape[1] :] for pair in pairs], dim=1)
    assert_same({"out": actual}, {"out": expected})


@every_variant
@pytest.mark.parametrize("t", [0, 6, 11])
def test_the_future_changes_nothing(variant: str, t: int) -> None:
    """Not a bit; where an FFT mixes all positions, not more than its rounding."""
    mixer, x = build(variant), tokens(2, 13)
    changed = torch.cat([x[:, : t + 1], 3 * tokens(2, 12 - t, seed=1)], dim=1)
    with torch.no_grad():
        before, after = mixer(x)[:, : t + 1], mixer(changed)[:, : t + 1]
    if VARIANTS[variant][0] in BY_FFT:
        assert_same({"out": after}, {"out": before}, 1e-12)
    else:
        assert torch.equal(before, after)


@every_variant
def test_outputs_at_positions(variant: str) -> None:
    mixer, x = build(variant), tokens(2, 13)
    at = torch.tensor([[12, 2, 5, 5], [3, 12, 0, 7]])
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[0, :2] = False
    index = at[..., None].expand(2, 4, D_MODEL)
    for options in ({}, {"key_mask": mask}):
        expected = with_grads(mixer, lambda x, options=options: mixer(x, **options).gather(1, index), x)
        assert_same(with_grads(mixer, lambda x, options=options: mixer(x, at=at, **options), x), expected)
    with pytest.raises(ValueError, match=r"positions must be in 0 \.\. 12"):
        mixer(x, at=at + 1)


@every_variant
def test_state_size(variant: str) -> None:
    """As large as it says, and constant but for those that keep the past."""
    mixer = build(variant, torch.float32)
    with torch.no_grad():
        _, state = mixer(tokens(2, 17).float(), state=mixer.init_state(2))
    assert state.nbytes == 2 * mixer.state_bytes(17)
    assert (mixer.state_bytes(MAX_LEN) == mixer.state_bytes(17)) == (variant not in GROWING)


@every_variant
def test_reordered_states(variant: str) -> None:
    mixer, x = build(variant), tokens(3, 8)
    with torch.no_grad():
        _, state = mixer(x[:, :5], state=mixer.init_state(3, dtype=x.dtype))
        actual, _ = mixer(x[[2, 0], 5:], state=state.reorder(torch.tensor([2, 0])))
        expected = mixer(x)[[2, 0], 5:]
    assert_same({"out": actual}, {"out": expected})


@every_variant
def test_compiles_in_one_piece(variant: str) -> None:
    mixer, x = build(variant), tokens(2, 9)
    at = torch.tensor([[8, 0, 5], [3, 7, 1]])
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :2] = False
    state = mixer.init_state(2, dtype=x.dtype)

    def run(x: Tensor, at: Tensor, mask: Tensor, state: Any) -> Tensor:
        y, state = mixer(x, state=state, key_mask=mask)
        z, _ = mixer(x[:, :1], state=state)
        return torch.cat([y, z, mixer(x), mixer(x, at=at)], dim=1)

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    real = torch.cat([mask, torch.ones(2, 13, dtype=torch.bool)], dim=1)
    expected = with_grads(mixer, lambda x: run(x, at, mask, state)[real], x)
    assert_same(with_grads(mixer, lambda x: compiled(x, at, mask, state)[real], x), expected)


@every_variant
def test_under_autocast(variant: str) -> None:
    mixer = build(variant, torch.float32)
    x = tokens(2, 13).float()
    expected = with_grads(mixer, mixer, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = with_grads(mixer, lambda x: mixer(x).float(), x)
    assert_same({"out": actual["out"]}, {"out": expected["out"]}, 0.05)
    assert all(x.isfinite().all() for x in actual.values())


@every_variant
def test_stacked_replicas(variant: str) -> None:
    """Under vmap, with autograd outside: how many runs are trained at once."""
    mixers = [build(variant) for _ in range(2)]
    with torch.no_grad():
        for parameter in mixers[1].parameters():
            parameter.mul_(1.1)
    x = torch.stack([tokens(2, 9), tokens(2, 9, seed=2)])
    parameters, buffers = torch.func.stack_module_state(mixers)
    leaves = {name: p.detach().requires_grad_() for name, p in {"x": x, **parameters}.items()}
    weights = torch.randn(2, 9, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss(leaves: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        parameters = {name: leaf for name, leaf in leaves.items() if name != "x"}
        return (torch.func.functional_call(mixers[0], (parameters, buffers), (leaves["x"],)) * weights).sum()

    losses = torch.vmap(loss)(leaves, buffers)
    grads = torch.autograd.grad(losses.sum(), list(leaves.values()))
    for index, mixer in enumerate(mixers):
        expected = with_grads(mixer, mixer, x[index])
        actual = {name: g[index] for name, g in zip(leaves, grads, strict=True)}
        assert_same(actual, {name: expected[name] for name in actual})
        assert torch.allclose(losses[index], (expected["out"] * weights).sum())


@every_variant
def test_bad_shapes(variant: str) -> None:
    mixer, x = build(variant), tokens(2, 9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    for match, call in {
        "x has shape": lambda: mixer(x[..., 1:]),
        "key_mask has shape": lambda: mixer(x, key_mask=mask[:, 1:]),
        "key_mask has dtype": lambda: mixer(x, key_mask=mask.long()),
        "at has shape": lambda: mixer(x, at=torch.zeros(1, 3, dtype=torch.int64)),
        "at has dtype": lambda: mixer(x, at=torch.zeros(2, 3)),
        "cu_seqlens packs": lambda: mixer(x, cu_seqlens=torch.tensor([0, 9])),
        "cu_seqlens": lambda: mixer(x[:1], cu_seqlens=torch.tensor([0, 8])),
    }.items():
        with pytest.raises(ValueError, match=match):
            call()


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("rebased", {"num_heads": 0}, "num_heads=0 must be at least 1"),
        (
            "rebased",
            {"num_heads": 5, "num_key_heads": 2},
            "num_key_heads=2 does not divide num_heads=5; it may be 1, 5",
        ),
        ("rebased", {"norm_scope": "all"}, "it may be 'joined', 'head'"),
        ("rebased", {"num_heads": 25}, "num_heads=25 must be at most d_model=24"),
        ("based", {"backend": "cuda"}, "backend='cuda' is unknown; it may be 'auto', 'reference', 'chunked', 'triton'"),
        ("kernel_attention", {"kernel": "exp"}, "kernel='exp' is unknown; there are 'rebased', 'based'"),
        ("kernel_attention", {"kernel": "cosformer"}, r"which takes \(max_len\)"),
        ("kernel_attention", {"learn_coefficients": True}, "learn_coefficients needs kernel='based' or 'rebased'"),
        ("short_conv", {"num_taps": 0}, "num_taps=0 must be at least 1"),
        ("rwkv", {"layer": 2, "num_layers": 2}, "layer=2 must be less than num_layers=2"),
        ("mamba", {"init": "zoology"}, "init='zoology' is unknown; it may be 'own', 'published'"),
        ("mamba", {"state_dim": -1}, "state_dim=-1 must be at least 1"),
        ("rebased", {"eps": -1.0}, "eps=-1.0 must not be negative"),
        (
            "kernel_attention",
            {"kernel": Polynomial(1.0, 1.0, torch.ones(3, requires_grad=True))},
            "coefficients that no optimizer would see; use learn_coefficients",
        ),
    ],
)
def test_bad_options(name: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        MIXERS[name](D_MODEL, **options)


@pytest.mark.usefixtures("_forget_compilations")
def test_each_class_has_compilations_of_its_own() -> None:
    """torch.compile counts them by code object: the classes once shared a limit of eight, which this went beyond."""
    mixers = [MIXERS[name](D_MODEL).double() for name in ("short_conv", "rebased", "attention", "based")]
    compiled = [torch.compile(mixer, fullgraph=True, backend="eager") for mixer in mixers]
    for num_tokens, is_training in itertools.product((8, 9), (True, False)):
        x = tokens(2, num_tokens)
        for run, mixer in zip(compiled, mixers, strict=True):
            with torch.set_grad_enabled(is_training):
                torch.testing.assert_close(run(x), mixer(x))


def test_what_a_mixer_was_made_with_is_shown() -> None:
    """Values are 60 wide here, which nothing else tells."""
    shown = repr(MIXERS["rebased"](64)).splitlines()[1]
    assert shown.strip().startswith("kernel=Polynomial(0, 0, 1), d_model=64, norm=True, ")
    assert "num_heads=12, num_key_heads=12, feature_dim=16, head_dim=5, " in shown
    assert repr(MIXERS["previous_token"](8)) == "PreviousToken(d_model=8)"


def test_a_forward_that_somebody_wrapped_stays_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapper has a closure, without which its copy for a new class could not be made."""
    plain, calls = Mixer.forward, list[str]()

    def forward(self: Mixer, *args: Any, **kwargs: Any) -> Any:
        calls.append(type(self).__name__)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Mixer, "forward", forward)

    class Same(Mixer):
        new_state = Wrong.new_state

        def mix(self, x: Tensor, state: Any, at: Any, key_mask: Any) -> Any:
            return x, state

    x = tokens(2, 9)
    assert torch.equal(Same(D_MODEL)(x), x)
    assert calls == ["Same"]


def test_integers_are_no_input() -> None:
    with pytest.raises(ValueError, match=r"x is torch.int64; it must be of floating point numbers"):
        MIXERS["short_conv"](D_MODEL)(torch.zeros(1, 2, D_MODEL, dtype=torch.int64))


class Wrong(Mixer):
    """Gives two numbers too few."""

    def mix(self, x: Tensor, state: Any, at: Any, key_mask: Any) -> tuple[Tensor, Any]:
        return x[..., 2:], None

    def new_state(self, batch_size: int, *, device: Any, dtype: Any) -> Any:
        raise NotImplementedError


class OutputsAlone(Wrong):
    def mix(self, x: Tensor, state: Any, at: Any, key_mask: Any) -> Any:
        return x


@pytest.mark.parametrize("batch_size", [1, 2])
def test_outputs_without_a_state_are_named(batch_size: int) -> None:
    said = "OutputsAlone.mix gave a Tensor, not a pair: outputs and a state"
    with pytest.raises(RuntimeError, match=said):
        OutputsAlone(D_MODEL)(tokens(batch_size, 9))
    with pytest.raises(RuntimeError, match=said):
        OutputsAlone(D_MODEL)(tokens(1, 9), cu_seqlens=torch.tensor([0, 9]))


def test_outputs_of_another_shape_are_named() -> None:
    x, at = tokens(2, 9), torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"Wrong.mix gave \(2, 9, 22\), not \(2, 9, 24\)$"):
        Wrong(D_MODEL)(x)
    with pytest.raises(RuntimeError, match=r"not \(2, 3, 24\); outputs are wanted at `at` only"):
        Wrong(D_MODEL)(x, at=at)
