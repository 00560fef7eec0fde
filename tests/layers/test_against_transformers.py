"""Mamba and RWKV inside Hugging Face's models: theirs, with their mixers replaced by ours, weights copied over."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rebased.layers import RWKV, Mamba, Mixer

transformers = pytest.importorskip("transformers")


class InPlaceOf(nn.Module):
    """One of our mixers where theirs was; ``tail`` is what theirs returns beside the output."""

    def __init__(self, mixer: Mixer, *, tail: tuple[Any, ...] | None) -> None:
        super().__init__()
        self.mixer = mixer
        self.tail = tail

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Any:
        y = self.mixer(x)
        return y if self.tail is None else (y, *self.tail)


def copied(mixer: Mixer, weights: dict[str, Tensor]) -> Mixer:
    mixer.load_state_dict({name: x.detach().clone() for name, x in weights.items()})  # strict: every parameter
    return mixer.double()


def our_mamba(theirs: nn.Module) -> Mixer:
    mixer = Mamba(theirs.hidden_size, state_dim=theirs.ssm_state_size, num_taps=theirs.conv_kernel_size, expand=3)
    return copied(
        mixer,
        {
            "in_proj.weight": theirs.in_proj.weight,
            "conv.weight": theirs.conv1d.weight[:, 0],
            "conv.bias": theirs.conv1d.bias,
            "x_proj.weight": theirs.x_proj.weight,
            "dt_proj.weight": theirs.dt_proj.weight,
            "dt_proj.bias": theirs.dt_proj.bias,
            "A_log": theirs.A_log,
            "skip": theirs.D,
            "out_proj.weight": theirs.out_proj.weight,
        },
    )


def our_rwkv(theirs: nn.Module) -> Mixer:
    return copied(
        RWKV(theirs.time_decay.numel()),
        {
            "log_decay": theirs.time_decay,
            "bonus": theirs.time_first,
            "k_mix": theirs.time_mix_key.flatten(),
            "v_mix": theirs.time_mix_value.flatten(),
            "r_mix": theirs.time_mix_receptance.flatten(),
            "k_proj.weight": theirs.key.weight,
            "v_proj.weight": theirs.value.weight,
            "r_proj.weight": theirs.receptance.weight,
            "o_proj.weight": theirs.output.weight,
        },
    )


@pytest.fixture(autouse=True)
def _same_weights_every_time() -> None:
    """Theirs start with any; how much float32 loses in their scans depends on them."""
    torch.manual_seed(0)


def randomized(model: nn.Module) -> nn.Module:
    """Away from the values that parameters start with, so that none could be mistaken for another."""
    generator = torch.Generator().manual_seed(0)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64, generator=generator))
    return model


def compare(theirs: nn.Module, ours: nn.Module, tokens: Tensor) -> None:
    """Outputs, and gradients of what both have; theirs scan in float32 whatever the weights are."""
    tolerance = 1e-6
    results = []
    for model in (theirs, ours):
        out = model(tokens, use_cache=False).last_hidden_state
        weights = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
        (out * weights).sum().backward()
        results.append((out.detach(), {name: p.grad for name, p in model.named_parameters()}))
    (expected, their_grads), (actual, our_grads) = results
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * expected.abs().max().item())
    common = their_grads.keys() & our_grads.keys()
    assert len(common) >= 4  # embeddings and norms
    for name in common:
        largest = their_grads[name].abs().max().item()
        torch.testing.assert_close(our_grads[name], their_grads[name], rtol=0, atol=tolerance * largest, msg=name)


@pytest.mark.filterwarnings("ignore")  # theirs warn that faster kernels are missing
def test_mamba() -> None:
    config = transformers.MambaConfig(
        vocab_size=50, hidden_size=12, state_size=5, num_hidden_layers=2, expand=3, conv_kernel=4, time_step_rank=1
    )
    theirs = randomized(transformers.MambaModel(config))
    ours = copy.deepcopy(theirs)
    for layer in ours.layers:
        layer.mixer = InPlaceOf(our_mamba(layer.mixer), tail=None)
    compare(theirs, ours, torch.randint(0, 50, (2, 37), generator=torch.Generator().manual_seed(2)))


@pytest.mark.filterwarnings("ignore")
def test_rwkv() -> None:
    config = transformers.RwkvConfig(vocab_size=50, hidden_size=12, num_hidden_layers=2, rescale_every=0)
    theirs = randomized(transformers.RwkvModel(config))
    ours = copy.deepcopy(theirs)
    for block in ours.blocks:
        block.attention = InPlaceOf(our_rwkv(block.attention), tail=(None,))
    compare(theirs, ours, torch.randint(0, 50, (2, 37), generator=torch.Generator().manual_seed(2)))
