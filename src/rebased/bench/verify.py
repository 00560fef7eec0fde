"""A backend must be right before it is timed: its error against the definition in float64."""

import torch
from torch import Tensor

from rebased.bench.candidates import with_gradients
from rebased.kernels import REBASED
from rebased.ops import kernel_attention

__all__ = ["TOLERANCES", "WrongBackendError", "check_backend", "relative_rms_error"]

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 5e-3}
"""The largest relative RMS error of a backend that may be timed, by the dtype of its inputs."""

_SHAPE = (2, 777, 3)  # (B, T, H): several chunks, the last one short
# A gradient through a normaliser of one or two similarities is rounding noise in any formulation, so rows before this
# one carry no weight in the loss. Their outputs are compared like all others.
_SETTLED = 32


class WrongBackendError(RuntimeError):
    """A backend's results are too far from the definition for its speed to mean anything."""


def relative_rms_error(actual: Tensor, expected: Tensor) -> float:
    """``‖actual - expected‖ / ‖expected‖`` in float64: 0 is equal, NaN anywhere in ``actual`` gives NaN."""
    expected = expected.double()
    return float((actual.double() - expected).norm() / expected.norm())


def check_backend(
    backend: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    feature_dim: int = 16,
    head_dim: int = 64,
    backward: bool = False,
    seed: int = 0,
) -> float:
    """The largest relative RMS error of ``backend`` in the output, and with ``backward`` in dq, dk and dv.

    The oracle is ``reference`` on the same inputs, rounded to ``dtype``, in float64. Raises WrongBackendError if an
    error exceeds the tolerance of ``dtype``.
    """
    inputs = _random_inputs(dtype, feature_dim, head_dim, seed)
    expected = _outputs("reference", [tensor.to(device, torch.float64, copy=True) for tensor in inputs], backward)
    actual = _outputs(backend, [tensor.to(device, copy=True) for tensor in inputs], backward)
    errors = {name: relative_rms_error(actual[name], expected[name]) for name in expected}
    bound = TOLERANCES[dtype]
    wrong = {name: error for name, error in errors.items() if not error <= bound}
    if wrong:
        found = ", ".join(f"{name} {error:.1e}" for name, error in wrong.items())
        raise WrongBackendError(
            f"backend {backend!r} is not timed because it is wrong on {device.type} in {dtype}: relative RMS error "
            f"against the float64 reference: {found}; at most {bound:.0e} is allowed"
        )
    return max(errors.values())


def _random_inputs(dtype: torch.dtype, feature_dim: int, head_dim: int, seed: int) -> list[Tensor]:
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v, grad_output = (
        torch.randn(*_SHAPE, size, generator=generator, dtype=torch.float64).to(dtype)
        for size in (feature_dim, feature_dim, head_dim, head_dim)
    )
    grad_output[:, :_SETTLED] = 0
    return [q, k, v, grad_output]


def _outputs(backend: str, inputs: list[Tensor], backward: bool) -> dict[str, Tensor]:
    q, k, v, grad_output = inputs

    def forward() -> Tensor:
        return kernel_attention(q, k, v, REBASED, backend=backend)

    outputs = {"output": forward()}
    if backward:
        gradients = with_gradients(forward, (q, k, v), grad_output)()
        outputs |= dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return outputs
