"""The Triton backend under torch's transforms: the operator is the same, so a few checks that it arrives there."""

import pytest
import torch

from rebased.kernels import BASED, Polynomial
from rebased.ops import kernel_attention, operator
from triton_tiles import interpretable  # noqa: F401

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


pytestmark = pytest.mark.usefixtures("interpretable")


def inputs(*lead: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*lead, 1, 40, 2, n, generator=generator).to(DEVICE).requires_grad_() for n in (5, 5, 3)]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return kernel_attention(q, k, v, BASED, backend="triton")


def test_compile_whole() -> None:
    leaves = inputs()
    results = []
    for function in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        out = function(*leaves)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    for expected, actual in zip(*results, strict=True):
        assert torch.equal(actual, expected)


def test_jacobian_of_one_sequence() -> None:
    """Here vmap hands over what the forward pass saved without a stride for the batch."""
    q, k, v = (x.detach()[:, :5] for x in inputs())
    jacobian = torch.func.jacrev(lambda q: attend(q, k, v))(q)
    expected = torch.func.jacrev(lambda q: kernel_attention(q, k, v, BASED, backend="chunked"))(q)
    torch.testing.assert_close(jacobian, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["chunked", "triton"])
def test_gradients_have_the_strides_that_are_foretold(backend: str) -> None:
    """Compiled code relies on them."""
    q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in inputs())
    settings = [0, 1, 2], 0.4, 1e-12, True, True, True, True, backend
    out, normalizer, _, _ = operator.attend(q, k, v, *[None] * 6, *settings, False)
    arguments = (out, normalizer, out, None, None, q, k, v, *[None] * 6, *settings, False)
    with torch._subclasses.FakeTensorMode() as mode:
        foretold = operator.attend_backward(
            *[mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments]
        )
    for real, fake in zip(operator.attend_backward(*arguments), foretold, strict=True):
        assert real.stride() == fake.stride()


def test_vmap_over_inputs_and_coefficients() -> None:
    q, k, v = (x.detach() for x in inputs(3))
    coefficients = torch.tensor([0.5, 1.0, 2.0], device=DEVICE)

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return kernel_attention(q, k, v, Polynomial(c, 1.0, 0.5), backend="triton").square().sum()

    grads = torch.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3)))(q, k, v, coefficients)
    for i in range(3):
        expected = torch.func.grad(loss, argnums=(0, 1, 2, 3))(q[i], k[i], v[i], coefficients[i])
        for actual, want in zip(grads, expected, strict=True):
            torch.testing.assert_close(actual[i], want, rtol=1e-5, atol=1e-5)


def test_autocast_casts_the_inputs() -> None:
    leaves = inputs()
    with torch.autocast(DEVICE, dtype=torch.float16):
        assert attend(*leaves).dtype == torch.float16


def test_differentiating_twice_raises() -> None:
    leaves = inputs()
    (grad,) = torch.autograd.grad(attend(*leaves).sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(grad.sum(), leaves[0])


def test_operator_is_well_formed() -> None:
    q, k, v = inputs()
    missing = [None] * 6
    settings = [0, 1, 2], 0.4, 1e-12, True, True, True, True, "triton", True
    torch.library.opcheck(operator.attend, (q, k, v, *missing, *settings))
