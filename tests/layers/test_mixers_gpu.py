"""Mixers on a CUDA device, where some have kernels of their own: against float64 on the CPU."""

import pytest
import torch
from torch import Tensor

from mixer_cases import VARIANTS, build, tokens, with_grads
from rebased.layers import Mixer

pytestmark = pytest.mark.gpu
TOLERANCES = {torch.float32: 2e-4, torch.bfloat16: 6e-2}
"""Of the norm of each result; Hyena's sines make its filter ill-conditioned in float32."""


def on_gpu(variant: str, dtype: torch.dtype) -> Mixer:
    return build(variant, torch.float32).to("cuda", dtype)


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype) -> None:
    floor = 1e-3 * max(x.norm() for x in expected.values())
    for name, x in expected.items():
        error = (actual[name].double().cpu() - x).norm()
        size = max(x.norm(), floor, _uncancelled(name, expected))
        assert error <= TOLERANCES[dtype] * size, f"{name}: {error:.1e} of {size:.1e}"


def _uncancelled(name: str, expected: dict[str, Tensor]) -> float:
    """What a bias's gradient would be about if its terms did not cancel: softmax does not see the keys' bias.

    The gradient of the weight beside it sums the same terms, times inputs of size 1.
    """
    weight = expected.get(name.removesuffix("bias") + "weight") if name.endswith(".bias") else None
    return 0.0 if weight is None or weight.ndim != 2 else (weight.norm() / weight.shape[1] ** 0.5).item()


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_cpu(variant: str, dtype: torch.dtype) -> None:
    x = tokens(2, 37).to(dtype)
    reference = build(variant, torch.float32).to(dtype).double()  # with weights rounded alike
    expected = with_grads(reference, reference, x.double())
    mixer = on_gpu(variant, dtype)
    assert_close(with_grads(mixer, mixer, x.cuda()), expected, dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_streams(variant: str) -> None:
    mixer, x = on_gpu(variant, torch.float32), tokens(2, 37).float().cuda()
    with torch.no_grad():
        whole, state = mixer(x), mixer.init_state(2, device="cuda")
        first, state = mixer(x[:, :30], state=state)
        steps = []
        for t in range(30, 37):
            y, state = mixer(x[:, t : t + 1], state=state)
            steps.append(y)
    actual = torch.cat([first, *steps], dim=1)
    assert_close({"out": actual}, {"out": whole.double().cpu()}, torch.float32)


@pytest.mark.parametrize("variant", ["rwkv", "mamba"])
def test_results_are_identical_from_run_to_run(variant: str) -> None:
    mixer = on_gpu(variant, torch.bfloat16)
    x = torch.randn(16, 1000, 24, generator=torch.Generator().manual_seed(0)).to("cuda", torch.bfloat16)
    first, second = (with_grads(mixer, mixer, x) for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
