"""H3 against its recurrence, written out with complex numbers in float64, and its states across chunks of time."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mixer_cases import assert_same_norms, grads_of, random_tokens
from rebased.layers.h3 import H3, H3State
from tolerances import relative_rms


def build(d_model: int = 6, **options: Any) -> H3:
    torch.manual_seed(0)
    mixer = H3(d_model, **({"state_dim": 6} | options)).double().eval()
    with torch.no_grad():  # away from where all channels have the same A
        mixer.ssm.log_decay.add_(torch.randn_like(mixer.ssm.log_decay) / 2)
        mixer.ssm.frequency.add_(torch.randn_like(mixer.ssm.frequency))
    return mixer


# ---- The definition ----


def by_hand(mixer: H3, x: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 1 of the paper as two recurrences, and the diagonal one's last state, (B, H, D, D, N) and complex."""
    B, T, _ = x.shape
    H, D, K, ssm = mixer.num_heads, mixer.head_dim, mixer.state_dim, mixer.ssm
    A = torch.complex(-ssm.log_decay.exp(), ssm.frequency)  # (H, N)
    A_bar = torch.exp(ssm.log_step.exp()[:, None] * A)
    B_bar = (A_bar - 1) / A
    C = torch.view_as_complex(ssm.readout)
    shift_state = torch.zeros(B, K, mixer.d_model, dtype=x.dtype)
    state = torch.zeros(B, H, D, D, K // 2, dtype=torch.complex128)
    outputs = []
    for t in range(T):
        q, k, v = (x[:, t] @ proj.weight.T + proj.bias for proj in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
        shift_state = torch.cat([k[:, None], shift_state[:, :-1]], dim=1)
        shifted = (shift_state * mixer.shift).sum(1) + mixer.shift_skip * k
        product = torch.einsum("bhd,bhe->bhde", shifted.view(B, H, D), v.view(B, H, D))
        state = A_bar[:, None, None] * state + B_bar[:, None, None] * product[..., None]
        mixed = 2 * (C[:, None, None] * state).real.sum(-1) + ssm.skip[:, None, None] * product
        out = torch.einsum("bhd,bhde->bhe", q.view(B, H, D), mixed).flatten(1)
        outputs.append(out @ mixer.out_proj.weight.T + mixer.out_proj.bias)
    return torch.stack(outputs, dim=1), state / B_bar[:, None, None]


def hidden_of(mixer: H3, state: H3State) -> Tensor:
    """As `by_hand` has it."""
    hidden = torch.view_as_complex(state.hidden)  # (B, DD, H, N)
    return hidden.unflatten(1, (mixer.head_dim, -1)).permute(0, 3, 1, 2, 4)


@given(
    num_heads=st.integers(1, 3),
    head_dim=st.integers(1, 3),
    half=st.integers(1, 3),
    seq_len=st.integers(1, 12),
)
@settings(max_examples=25)
def test_matches_the_definition(num_heads: int, head_dim: int, half: int, seq_len: int) -> None:
    mixer = build(num_heads * head_dim, head_dim=head_dim, state_dim=2 * half)
    x = random_tokens(2, seq_len, mixer.d_model).requires_grad_()
    expected, last = by_hand(mixer, x)
    assert_same_norms(grads_of(mixer, mixer(x), x), grads_of(mixer, expected, x))
    _, state = mixer(x, state=mixer.init_state(2, dtype=x.dtype))
    torch.testing.assert_close(hidden_of(mixer, state), last)


@pytest.mark.parametrize("head_dim", [1, 2])
@pytest.mark.parametrize("lengths", [[200], [64, 136], [65, 1, 63, 71]], ids=str)
def test_chunks_of_time(head_dim: int, lengths: list[int]) -> None:
    """Several chunks of 64 and some tokens more, in pieces that begin and end anywhere."""
    mixer = build(head_dim=head_dim)
    x = random_tokens(2, 200, 6).requires_grad_()
    expected, last = by_hand(mixer, x)
    state, pieces = mixer.init_state(2, dtype=x.dtype), []
    for piece in x.split(lengths, dim=1):
        y, state = mixer(piece, state=state)
        pieces.append(y)
    assert_same_norms(grads_of(mixer, torch.cat(pieces, dim=1), x), grads_of(mixer, expected, x))
    torch.testing.assert_close(hidden_of(mixer, state), last)


def test_masked_tokens_leave_the_state() -> None:
    """Not even NaN in them does anything, and rows have decayed by their own tokens only."""
    mixer, x = build(head_dim=2), random_tokens(3, 150, 6)
    mask = torch.rand(3, 150, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[2] = False
    masked = x.where(mask[..., None], math.nan)
    state = mixer.init_state(3, dtype=x.dtype)
    with torch.no_grad():
        _, state = mixer(x[:, :70], state=state)
        y, state = mixer(masked, state=state, key_mask=mask)
        z, after = mixer(x[:, :3], state=state)
        for row in range(3):
            alone = torch.cat([x[row, :70], x[row, mask[row]], x[row, :3]])[None]
            expected, last = by_hand(mixer, alone)
            torch.testing.assert_close(torch.cat([y[row, mask[row]], z[row]]), expected[0, 70:])
            torch.testing.assert_close(hidden_of(mixer, after)[row], last[0])


def test_float32_is_close() -> None:
    mixer = build(state_dim=64)
    x = random_tokens(2, 300, 6)
    with torch.no_grad():
        expected, actual = mixer(x), mixer.float()(x.float())
    assert relative_rms(actual, expected) < 1e-5


# ---- Options ----


def test_initialisation() -> None:
    """S4D-Lin, and steps in the usual range; a model's own reaches projections only."""
    torch.manual_seed(0)
    mixer = H3(12, state_dim=8)
    assert torch.allclose(mixer.ssm.log_decay.exp(), torch.tensor(0.5))
    assert torch.allclose(mixer.ssm.frequency, torch.pi * torch.arange(4.0).expand(12, 4))
    assert (mixer.ssm.log_step.exp() >= 0.001).all()
    assert (mixer.ssm.log_step.exp() <= 0.1).all()
    before = {name: p.clone() for name, p in mixer.named_parameters()}
    mixer.init_weights(0.02, 2)
    changed = {name for name, p in mixer.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {f"{name}_proj.{part}" for name in ("q", "k", "v", "out") for part in ("weight", "bias")}


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"state_dim": 0}, ValueError, "state_dim=0 must be at least 1"),
        ({"state_dim": 5}, ValueError, "state_dim=5 must be even"),
        ({"state_dim": 4.0}, TypeError, "state_dim is 4.0; it must be an integer"),
        ({"head_dim": 0}, ValueError, "head_dim=0 must be at least 1"),
        ({"head_dim": 4}, ValueError, "head_dim=4 does not divide d_model=6; it may be 1, 2, 3, 6"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        H3(6, **options)
