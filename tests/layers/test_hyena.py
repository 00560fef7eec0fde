"""Hyena against its definition, written out in float64, and what it alone does: a longest sequence, a growing state."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mixer_cases import assert_same_norms, grads_of, random_tokens
from rebased.layers.hyena import Hyena, HyenaState
from tolerances import relative_rms


def build(d_model: int = 5, **options: Any) -> Hyena:
    torch.manual_seed(0)
    return Hyena(d_model, **({"seq_len": 16, "filter_dim": 6, "num_frequencies": 3} | options)).double().eval()


# ---- The definition ----


def filters_by_hand(mixer: Hyena) -> Tensor:
    """Equation 7 of the paper for each tap, (L, N, M)."""
    network, L, M = mixer.filter, mixer.seq_len, mixer.d_model
    taps = []
    for tap in range(L):
        time = tap / max(L - 1, 1)
        exponentials = [complex(math.cos(a), math.sin(a)) for a in [2 * math.pi * k * tap / L for k in range(3)]]
        features = [time, *(z.real for z in exponentials), *(z.imag for z in exponentials)]
        x = torch.tensor(features, dtype=torch.float64)
        for weight, bias in zip(network.weights, network.biases, strict=True):
            x = torch.sin(network.frequency * (weight @ x + bias))
        heights = []
        for channel in range(M):
            # ln 100 / 1.5 in the first channel, ln 100 / 0.3 in the last
            share = channel / max(M - 1, 1)
            heights.append(math.exp(-time * math.log(100) * ((1 - share) / 1.5 + share / 0.3)))
        window = torch.tensor(heights, dtype=torch.float64)
        taps.append((network.out_weight @ x).view(mixer.num_filters, M) * window)
    return torch.stack(taps)


def by_hand(mixer: Hyena, x: Tensor) -> Tensor:
    """Definition 3.1, token after token."""
    _, T, M = x.shape
    K, conv = mixer.conv.num_taps, mixer.conv
    projected = [x[:, t] @ mixer.in_proj.weight.T + mixer.in_proj.bias for t in range(T)]
    short = [
        conv.bias + sum(conv.weight[:, K - 1 - j] * projected[t - j] for j in range(min(K, t + 1))) for t in range(T)
    ]
    streams = [[u[:, n * M : (n + 1) * M] for u in short] for n in range(mixer.order + 1)]
    z, filters = streams[0], filters_by_hand(mixer)
    for n in range(1, mixer.order + 1):
        index = n - 1 - (mixer.order - mixer.num_filters)
        if index >= 0:
            h, d = filters[:, index], mixer.skip[index]
            z = [sum(h[j] * z[t - j] for j in range(t + 1)) + d * z[t] for t in range(T)]
        z = [gate * value for gate, value in zip(streams[n], z, strict=True)]
    return torch.stack([value @ mixer.out_proj.weight.T + mixer.out_proj.bias for value in z], dim=1)


@given(
    d_model=st.integers(1, 5),
    seq_len=st.integers(1, 12),
    spare=st.integers(0, 3),
    order=st.integers(1, 3),
    first_filter=st.booleans(),
    num_taps=st.integers(1, 4),
    num_inner_layers=st.integers(1, 2),
)
@settings(max_examples=25)
def test_matches_the_definition(
    d_model: int, seq_len: int, spare: int, order: int, first_filter: bool, num_taps: int, num_inner_layers: int
) -> None:
    mixer = build(
        d_model,
        seq_len=seq_len + spare,
        order=order,
        first_filter=first_filter or order == 1,
        num_taps=num_taps,
        num_inner_layers=num_inner_layers,
    )
    x = random_tokens(2, seq_len, d_model).requires_grad_()
    assert_same_norms(grads_of(mixer, mixer(x), x), grads_of(mixer, by_hand(mixer, x), x))


def test_long_pieces_equal_the_whole() -> None:
    mixer = build(seq_len=128)
    x = random_tokens(2, 128, 5).requires_grad_()
    state, pieces = mixer.init_state(2, dtype=x.dtype), []
    for piece in x.split([70, 1, 20, 37], dim=1):
        y, state = mixer(piece, state=state)
        pieces.append(y)
    assert_same_norms(grads_of(mixer, torch.cat(pieces, dim=1), x), grads_of(mixer, mixer(x), x))


def test_float32_is_close() -> None:
    mixer = build(seq_len=64)
    x = random_tokens(2, 64, 5)
    with torch.no_grad():
        expected, actual = mixer(x), mixer.float()(x.float())
    assert relative_rms(actual, expected) < 2e-5  # measured 4e-6: sines of frequency 14 amplify what is rounded


# ---- Sequences as long as the filters ----


def test_longer_sequences_are_refused() -> None:
    mixer, x = build(), random_tokens(2, 17, 5)
    with torch.no_grad():
        mixer(x[:, :16])
        with pytest.raises(ValueError, match="x has 17 tokens; seq_len=16 is the most that this Hyena takes"):
            mixer(x)
        _, state = mixer(x[:, :16], state=mixer.init_state(2, dtype=x.dtype))
        with pytest.raises(ValueError, match=r"the last token, state included, reaches from 16 to 16; .* 0 .. 15"):
            mixer(x[:, 16:], state=state)
        mixer(x, key_mask=torch.arange(17).expand(2, 17) > 0)
        with pytest.raises(ValueError, match="state included, reaches from 16 to 16"):
            mixer(x, key_mask=torch.ones(2, 17, dtype=torch.bool))


def test_longer_sequences_are_refused_in_compiled_graphs() -> None:
    mixer, x = build(), random_tokens(2, 17, 5)
    torch._dynamo.reset()
    run = torch.compile(lambda x, mask: mixer(x, key_mask=mask), fullgraph=True, backend="aot_eager")
    mask = torch.arange(17).expand(2, 17) > 0
    with torch.no_grad():
        assert torch.equal(run(x, mask), mixer(x, key_mask=mask))
        with pytest.raises(ValueError, match="state included, reaches from 16 to 16"):
            run(x, torch.ones_like(mask))


def test_padding_takes_no_place() -> None:
    """Neither in a batch wider than seq_len nor in the state that it leaves."""
    mixer, x = build(), random_tokens(2, 16, 5)
    mask = torch.zeros(2, 20, dtype=torch.bool)
    mask[0, ::2] = True  # 10 tokens
    mask[1, 3:9] = True  # 6
    padded = torch.full((2, 20, 5), math.nan, dtype=x.dtype)
    padded[0, mask[0]], padded[1, mask[1]] = x[0, :10], x[1, :6]
    with torch.no_grad():
        expected = mixer(x)
        y, state = mixer(padded, state=mixer.init_state(2, dtype=x.dtype), key_mask=mask)
        torch.testing.assert_close(y[0, mask[0]], expected[0, :10])
        torch.testing.assert_close(y[1, mask[1]], expected[1, :6])
        assert state.inputs.shape[1] == 16
        assert state.count.tolist() == [10, 6]
        for step in range(6):
            token = torch.stack([x[0, 10 + step], x[1, 6 + step]])[:, None]
            y, state = mixer(token, state=state)
            torch.testing.assert_close(y[:, 0], torch.stack([expected[0, 10 + step], expected[1, 6 + step]]))
        with pytest.raises(ValueError, match="reaches from 12 to 16"):
            mixer(x[:, :1], state=state)


# ---- The state ----


def test_joined_states_go_on_as_they_were() -> None:
    mixer, x = build(), random_tokens(3, 10, 5)
    with torch.no_grad():
        states = [mixer(x[i : i + 1, :n], state=mixer.init_state(1, dtype=x.dtype))[1] for i, n in enumerate((3, 7, 5))]
        new = torch.stack([x[i, n : n + 3] for i, n in enumerate((3, 7, 5))])
        actual, state = mixer(new, state=HyenaState.join(states))
        expected = torch.stack([mixer(x[i : i + 1])[0, n : n + 3] for i, n in enumerate((3, 7, 5))])
    torch.testing.assert_close(actual, expected)
    assert state.count.tolist() == [6, 10, 8]


def test_state_grows_up_to_seq_len() -> None:
    mixer = build(order=3)
    token = 3 * 5 * 8  # three convolutions, five channels, float64
    sizes = [mixer.state_bytes(n, dtype=torch.float64) for n in (0, 1, 16, 17)]
    assert [size - sizes[0] for size in sizes] == [0, token, 16 * token, 16 * token]


# ---- Options ----


def test_filters_keep_their_initialisation() -> None:
    mixer = build()
    before = {name: p.clone() for name, p in mixer.named_parameters()}
    mixer.init_weights(0.02, 2)
    changed = {name for name, p in mixer.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"in_proj.weight", "in_proj.bias", "out_proj.weight", "out_proj.bias"}


def test_dropout_is_for_training() -> None:
    mixer, x = build(dropout=0.5), random_tokens(2, 9, 5)
    assert torch.equal(mixer(x), build()(x))
    assert not torch.equal(mixer.train()(x), mixer(x))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"seq_len": 0}, ValueError, "seq_len=0 must be at least 1"),
        ({"seq_len": 2.0}, TypeError, "seq_len is 2.0; it must be an integer"),
        ({"order": 0}, ValueError, "order=0 must be at least 1"),
        ({"num_taps": 0}, ValueError, "num_taps=0 must be at least 1"),
        ({"filter_dim": -1}, ValueError, "filter_dim=-1 must be at least 1"),
        ({"num_frequencies": 0}, ValueError, "num_frequencies=0 must be at least 1"),
        ({"num_inner_layers": 0}, ValueError, "num_inner_layers=0 must be at least 1"),
        ({"first_filter": 1}, TypeError, "first_filter is 1; it must be True or False"),
        ({"first_filter": False, "order": 1}, ValueError, "first_filter=False leaves order=1 no filter"),
        ({"sine_frequency": 0.0}, ValueError, "sine_frequency=0.0 must be positive and finite"),
        ({"sine_frequency": "14"}, TypeError, "sine_frequency is '14'; it must be a number"),
        ({"dropout": 1.0}, ValueError, "dropout=1.0 must be at least 0 and less than 1"),
        ({"dropout": None}, TypeError, "dropout is None; it must be a number"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        build(**options)
