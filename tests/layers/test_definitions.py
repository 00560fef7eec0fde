"""What the kernel mixers, the short convolution and the MLP compute, written out in float64; how mixers start."""

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mixer_cases import assert_same, with_grads
from rebased.layers import RWKV, Based, KernelAttention, Mamba, Mixer, PreviousToken, ReBased, ShortConv
from rebased.models.block import Block
from rebased.models.config import LayerConfig, ModelConfig
from rebased.ops import backends, step

D_MODEL = 24


def randomized(mixer: nn.Module) -> Any:
    """In float64 and away from initial values, so that no parameter could be left out unseen."""
    generator = torch.Generator().manual_seed(0)
    mixer = mixer.double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return mixer


def tokens(seq_len: int = 11) -> Tensor:
    return torch.randn(2, seq_len, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def quadratic(mixer: KernelAttention, x: Tensor, similarity: Any, transform: Any = lambda q, k: (q, k)) -> Tensor:
    """One query and head after another."""
    F, D, group = mixer.feature_dim, mixer.head_dim, mixer.num_heads // mixer.num_key_heads
    q, k = transform(x @ mixer.q_proj.weight.T, x @ mixer.k_proj.weight.T)
    v = x @ mixer.v_proj.weight.T
    rows = []
    for t in range(x.shape[1]):
        heads = []
        for h in range(mixer.num_heads):
            g = h // group
            s = (q[:, t, None, h * F : (h + 1) * F] * k[:, : t + 1, g * F : (g + 1) * F]).sum(-1) / math.sqrt(F)
            weights = similarity(s, h)
            numerator = (weights[..., None] * v[:, : t + 1, g * D : (g + 1) * D]).sum(1)
            heads.append(numerator / (weights.sum(1, keepdim=True) + mixer.eps))
        rows.append(torch.cat(heads, dim=-1) @ mixer.o_proj.weight.T)
    return torch.stack(rows, dim=1)


def check(mixer: Mixer, by_hand: Any) -> None:
    x = tokens()
    assert_same(with_grads(mixer, mixer, x), with_grads(mixer, by_hand, x))


SIZES = {"num_heads": 4, "num_key_heads": 2, "feature_dim": 5, "head_dim": 3, "eps": 0.1}


def test_based() -> None:
    mixer = randomized(Based(D_MODEL, **SIZES))
    check(mixer, lambda x: quadratic(mixer, x, lambda s, _: 1 + s + s**2 / 2))


def test_learned_coefficients() -> None:
    """One of each degree per head; they start at the kernel's own."""
    mixer = KernelAttention(D_MODEL, kernel="based", learn_coefficients=True, **SIZES)
    assert mixer.coefficients.tolist() == [[1.0] * 4, [1.0] * 4, [0.5] * 4]
    c = randomized(mixer).coefficients
    check(mixer, lambda x: quadratic(mixer, x, lambda s, h: c[0, h] + c[1, h] * s + c[2, h] * s**2))


def test_linear_transformer() -> None:
    """Features, not a function of s: all pairs at once."""
    mixer = randomized(KernelAttention(D_MODEL, num_heads=3, feature_dim=5, eps=0.1))

    def by_hand(x: Tensor) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (3, -1)) for proj in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
        sim = torch.einsum("bthf,bshf->bhts", functional.elu(q) + 1, functional.elu(k) + 1).tril()
        out = torch.einsum("bhts,bshd->bthd", sim / (sim.sum(-1, keepdim=True) + 0.1), v)
        return mixer.o_proj(out.flatten(2))

    check(mixer, by_hand)


@pytest.mark.parametrize("scope", ["joined", "head"])
@pytest.mark.parametrize(("norm", "gamma", "beta"), [(1, 1, 1), (0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 1, 1)])
def test_rebased_and_its_ablations(norm: int, gamma: int, beta: int, scope: str) -> None:
    mixer = randomized(ReBased(D_MODEL, norm=bool(norm), gamma=bool(gamma), beta=bool(beta), norm_scope=scope, **SIZES))
    expected = {"joined": 4 * 5 + 2 * 5, "head": 5}[scope]
    extra = sum(p.numel() for name, p in mixer.named_parameters() if "proj" not in name)
    assert extra == (gamma + beta) * expected

    def one(x: Tensor, index: int) -> Tensor:
        if scope == "head":
            x = x.unflatten(-1, (-1, 5))
        if norm:
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        if gamma:
            x = x * mixer.gammas[index]
        if beta:
            x = x + mixer.betas[index]
        return x.flatten(2)

    check(mixer, lambda x: quadratic(mixer, x, lambda s, _: s**2, lambda q, k: (one(q, 0), one(k, -1))))


def test_affine_starts_as_the_identity() -> None:
    mixer = ReBased(D_MODEL)
    assert all((gamma == 1).all() for gamma in mixer.gammas)
    assert all((beta == 0).all() for beta in mixer.betas)


def test_short_conv() -> None:
    mixer = randomized(ShortConv(D_MODEL))

    def by_hand(x: Tensor) -> Tensor:
        padded = functional.pad(x, (0, 0, 2, 0)).transpose(1, 2)
        convolved = functional.conv1d(padded, mixer.conv.weight[:, None], mixer.conv.bias, groups=D_MODEL)
        return convolved.transpose(1, 2) * (x @ mixer.proj.weight.T + mixer.proj.bias) + x

    check(mixer, by_hand)


def test_previous_token_is_a_short_conv_with_fixed_weights() -> None:
    """To the last bit; it has nothing to learn."""
    conv, mixer = ShortConv(D_MODEL), PreviousToken(D_MODEL)
    with torch.no_grad():
        conv.conv.weight.copy_(torch.tensor([0.0, 1.0, 0.0]).expand(D_MODEL, 3))
        conv.conv.bias.zero_()
        conv.proj.weight.zero_()
        conv.proj.bias.fill_(1.0)
    assert list(mixer.parameters()) == []
    x = tokens().float()
    assert torch.equal(mixer(x), conv(x))
    assert torch.equal(mixer(x)[:, 0], x[:, 0])
    assert torch.equal(mixer(x)[:, 1:], x[:, 1:] + x[:, :-1])


def test_a_layer_without_weights_keeps_its_dtype() -> None:
    layer, x = PreviousToken(4).double(), torch.randn(1, 3, 4, dtype=torch.float64)
    state, parts = layer.init_state(1), []
    for t in range(3):
        y, state = layer(x[:, t : t + 1], state=state)
        parts.append(y)
    assert torch.equal(torch.cat(parts, dim=1), layer(x))


@pytest.mark.parametrize("backend", ["reference", "chunked", "triton"])
def test_single_tokens_keep_to_the_backend(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot do a sequence does not do a token either; and what is not Triton does not become it."""
    monkeypatch.setattr(backends, "IS_INTERPRETED", False)
    layer = KernelAttention(8, kernel="rebased", num_heads=2, feature_dim=4, backend=backend)
    state, x = layer.init_state(1), torch.randn(1, 1, 8)
    if backend == "triton":
        for call in (lambda: layer(x, state=state), lambda: layer(torch.randn(1, 2, 8))):
            with pytest.raises(ValueError, match="backend='triton' needs a CUDA device"):
                call()
    else:
        with patch.object(step, "choose_step_backend", wraps=step.choose_step_backend) as choose:
            layer(x, state=state)
        assert choose.call_args.args[0] == "torch"


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_block_with_an_mlp(norm: str) -> None:
    layer = LayerConfig(mixer="short_conv", norm=norm, after="mlp")
    config = ModelConfig(d_model=D_MODEL, seq_len=11, layers=(layer,), mlp_factor=3)
    block = randomized(Block(config, layer))

    def normed(x: Tensor, module: Any) -> Tensor:
        if norm == "layer":
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            return x * module.weight + module.bias
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * module.weight

    def by_hand(x: Tensor) -> Tensor:
        x = x + block.mixer(normed(x, block.norm))
        hidden = normed(x, block.after_norm) @ block.after.up.weight.T + block.after.up.bias
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return x + hidden @ block.after.down.weight.T + block.after.down.bias

    options = {"at": None, "key_mask": None, "cu_seqlens": None}
    x = tokens()
    assert_same(with_grads(block, lambda x: block(x, None, **options)[0], x), with_grads(block, by_hand, x))


def test_residual_dropout_acts_on_what_is_added() -> None:
    layer = LayerConfig(mixer="short_conv", after="mlp")
    config = ModelConfig(d_model=D_MODEL, seq_len=11, layers=(layer,), residual_dropout=0.999999)
    block = Block(config, layer).train()
    x = tokens().float()
    assert torch.equal(block(x, None, at=None, key_mask=None, cu_seqlens=None)[0], x)


# ---- How mixers start ----


def test_rwkv_starts_as_published() -> None:
    """Of four channels, at both ends of two layers; numbers worked out from RWKV-4's formulas."""
    first, last = RWKV(4, layer=0, num_layers=2), RWKV(4, layer=1, num_layers=2)
    assert_list(first.log_decay, [-5, -5 + 8 * (1 / 3) ** 0.7, -5 + 8 * (2 / 3) ** 0.7, 3])
    assert_list(last.log_decay, [-5, -5 + 8 / 9, -5 + 8 * 4 / 9, 3])
    assert_list(first.bonus, [math.log(0.3), math.log(0.3) + 0.5, math.log(0.3) - 0.5, math.log(0.3)])
    assert_list(first.k_mix, [0, 0.25, 0.5, 0.75])
    assert_list(first.v_mix, [0, 0.25, 0.5, 0.75])
    assert_list(first.r_mix, [0, 0.5, math.sqrt(0.5), math.sqrt(0.75)])
    assert_list(last.k_mix, [0, 0.5, math.sqrt(0.5), math.sqrt(0.75)])
    assert_list(last.v_mix, [0.3, 0.8, 0.3 + math.sqrt(0.5), 0.3 + math.sqrt(0.75)])
    assert_list(last.r_mix, [0, 0.25**0.25, 0.5**0.25, 0.75**0.25])


def test_mamba_starts_as_published_by_its_authors() -> None:
    mixer = Mamba(32, state_dim=4)
    for row in mixer.A_log:
        assert_list(row.exp(), [1, 2, 3, 4])
    assert (mixer.skip == 1).all()
    assert mixer.dt_rank == 2
    assert mixer.dt_proj.weight.abs().max() <= 2**-0.5
    for _ in range(2):  # as often as one likes
        mixer.init_weights(0.02, num_layers=8)
        bound = 1 / math.sqrt(64 * 8)
        assert 0.95 * bound < mixer.out_proj.weight.abs().max() <= bound


def assert_list(actual: Tensor, expected: list[float]) -> None:
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)
