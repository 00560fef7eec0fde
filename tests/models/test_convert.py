"""Weights of others, against their models written down again from names and equations."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, layer_norm, linear

from rebased.models.convert import PUBLISHED_STACKS, layer_from_fla, model_from_published

D, L, V, H, F = 24, 20, 30, 12, 16
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def normal(*shape: int, seed: list[int]) -> Tensor:
    seed[0] += 1
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed[0]), dtype=torch.float64) * 0.5


def published_weights(stack: str) -> dict[str, Tensor]:
    """As the published code names them, random."""
    seed = [0]
    layers = "backbone.layers."
    conv, mixer = f"{layers}0.sequence_mixer.mixer.", f"{layers}1.sequence_mixer.mixer."
    weights = {
        "backbone.embeddings.word_embeddings.weight": normal(V, D, seed=seed),
        "backbone.embeddings.position_embeddings.weight": normal(L, D, seed=seed),
        f"{conv}projection.weight": normal(D, D, seed=seed),
        f"{conv}projection.bias": normal(D, seed=seed),
        f"{conv}conv.conv.weight": normal(D, 1, 3, seed=seed),
        f"{conv}conv.conv.bias": normal(D, seed=seed),
        f"{mixer}proj_q.weight": normal(H * F, D, seed=seed),
        f"{mixer}proj_k.weight": normal(H * F, D, seed=seed),
        f"{mixer}proj_v.weight": normal(H * (D // H), D, seed=seed),
        f"{mixer}proj_o.weight": normal(D, H * (D // H), seed=seed),
    }
    names = {"rebased": ("weight", "bias"), "gamma_x2": ("gamma", "beta"), "gamma_beta_x2": ("gamma", "beta")}
    for side in "qk":
        weights |= {f"{mixer}ln_{side}.{name}": normal(H * F, seed=seed) for name in names.get(stack, ())}
    for name in (f"{layers}0.norm1", f"{layers}0.norm2", f"{layers}1.norm1", f"{layers}1.norm2", "backbone.ln_f"):
        weights |= {f"{name}.{part}": normal(D, seed=seed) for part in ("weight", "bias")}
    weights["lm_head.weight"] = weights["backbone.embeddings.word_embeddings.weight"]
    return weights


def published_logits(w: dict[str, Tensor], stack: str, tokens: Tensor) -> Tensor:
    """Two pre-norm layers without MLPs, whose state mixer is the identity; attention in its quadratic form."""
    layers = "backbone.layers."

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def conv(u: Tensor) -> Tensor:
        p = f"{layers}0.sequence_mixer.mixer."
        mixed = conv1d(u.mT, w[f"{p}conv.conv.weight"], w[f"{p}conv.conv.bias"], padding=2, groups=D)[..., : u.shape[1]]
        return mixed.mT * linear(u, w[f"{p}projection.weight"], w[f"{p}projection.bias"]) + u

    def attention(u: Tensor) -> Tensor:
        p = f"{layers}1.sequence_mixer.mixer."
        q, k = (transformed(side, linear(u, w[f"{p}proj_{side}.weight"])) for side in "qk")
        v = linear(u, w[f"{p}proj_v.weight"])
        q, k, v = (x.unflatten(-1, (H, -1)).transpose(1, 2) for x in (q, k, v))
        s = q @ k.mT / F**0.5
        sim = (1 + s + s**2 / 2 if stack == "based" else s**2).tril()
        out = sim @ v / (sim.sum(dim=-1, keepdim=True) + 1e-12)
        return linear(out.transpose(1, 2).flatten(2), w[f"{p}proj_o.weight"])

    def transformed(side: str, x: Tensor) -> Tensor:
        p = f"{layers}1.sequence_mixer.mixer.ln_{side}."
        if stack == "rebased":
            return layer_norm(x, (H * F,), w[f"{p}weight"], w[f"{p}bias"], 1e-5)
        if stack == "norm_x2":
            return layer_norm(x, (H * F,), eps=1e-5)
        if stack in ("gamma_x2", "gamma_beta_x2"):
            return x * w[f"{p}gamma"] + (w[f"{p}beta"] if stack == "gamma_beta_x2" else 0)
        return x

    words = w["backbone.embeddings.word_embeddings.weight"]
    residual = words[tokens] + w["backbone.embeddings.position_embeddings.weight"][: tokens.shape[1]]
    for index, mixer in enumerate((conv, attention)):
        residual = residual + mixer(norm(f"{layers}{index}.norm1", residual))
        residual = residual + norm(f"{layers}{index}.norm2", residual)
    return linear(norm("backbone.ln_f", residual), words)


@pytest.mark.parametrize("stack", PUBLISHED_STACKS)
def test_published_models(stack: str) -> None:
    weights = published_weights(stack)
    tokens = torch.randint(0, V, (3, L), generator=torch.Generator().manual_seed(0))
    model = model_from_published(weights, stack=stack).eval()
    torch.testing.assert_close(model(tokens), published_logits(weights, stack, tokens), **EXACT)


def fla_weights(*, gamma: bool = True, beta: bool = True) -> dict[str, Tensor]:
    seed = [100]
    weights = {
        "q_proj.weight": normal(4 * 6, D, seed=seed),
        "k_proj.weight": normal(4 * 6, D, seed=seed),
        "v_proj.weight": normal(D, D, seed=seed),
        "o_proj.weight": normal(D, D, seed=seed),
    }
    weights |= {"feature_map.gamma": normal(6, seed=seed)} if gamma else {}
    return weights | ({"feature_map.beta": normal(6, seed=seed)} if beta else {})


@pytest.mark.parametrize(("parts", "normalize"), [({}, True), ({}, False), ({"beta": False}, False)])
def test_layer_of_flash_linear_attention(parts: dict[str, bool], normalize: bool) -> None:
    """Norm and affine act on each head, with one γ and β for all of them, queries and keys."""
    w = fla_weights(**parts)
    x = normal(2, 11, D, seed=[7])

    def features(name: str) -> Tensor:
        y = linear(x, w[name]).unflatten(-1, (4, 6))
        y = layer_norm(y, (6,), eps=1e-5) if normalize else y
        return (y * w["feature_map.gamma"] + w.get("feature_map.beta", torch.zeros(6))).transpose(1, 2)

    sim = ((features("q_proj.weight") @ features("k_proj.weight").mT) ** 2 / 6).tril()
    v = linear(x, w["v_proj.weight"]).unflatten(-1, (4, 6)).transpose(1, 2)
    out = sim @ v / (sim.sum(dim=-1, keepdim=True) + 1e-5)
    expected = linear(out.transpose(1, 2).flatten(2), w["o_proj.weight"])
    layer = layer_from_fla(w, num_heads=4, normalize=normalize)
    torch.testing.assert_close(layer(x), expected, **EXACT)


@pytest.mark.parametrize(
    ("changes", "stack", "message"),
    [
        ({}, "mamba", "stack='mamba' is not one of based, rebased"),
        ({}, "x2", r"do not fit a 'x2' model of d_model 24: blocks\.1\.mixer\.betas\.0 is not part of it"),
        ({"backbone.ln_f.bias": None}, "rebased", r"norm\.bias is missing"),
        ({"backbone.ln_f.bias": torch.zeros(3)}, "rebased", r"norm\.bias has shape \(3,\) instead of \(24,\)"),
        ({"classifier.weight": torch.zeros(3)}, "rebased", r"weights have classifier\.weight"),
        ({"backbone.embeddings.word_embeddings.weight": None}, "rebased", r"lack what would be our embedding\.weight"),
    ],
    ids=["stack", "another row", "missing", "shape", "name", "no model"],
)
def test_weights_that_do_not_fit(changes: dict[str, Any], stack: str, message: str) -> None:
    weights: dict[str, Any] = published_weights("rebased") | changes
    with pytest.raises(ValueError, match=message):
        model_from_published({name: x for name, x in weights.items() if x is not None}, stack=stack)


def test_fla_weights_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="num_heads=5 does not divide the 24 rows"):
        layer_from_fla(fla_weights(), num_heads=5)
    with pytest.raises(ValueError, match=r"weights lack q_proj\.weight"):
        layer_from_fla({}, num_heads=4)
