"""A backend must be right before it is timed: its error against the definition in float64."""

import torch
from torch import Tensor

from rebased.bench.candidates import UNSETTLED, Inputs, build_call
from rebased.kernels import REBASED
from rebased.ops import initial_state, kernel_attention, kernel_attention_step
from rebased.ops.dtypes import sums_dtype

__all__ = ["TOLERANCES", "WrongBackendError", "check_backend", "check_errors", "check_step", "relative_rms_error"]

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 5e-3}
"""The largest relative RMS error of a backend that may be timed, by the dtype of its inputs."""

_SHAPE = (2, 777, 3)  # (B, T, H): several chunks, the last one short
_STEPS = 70  # of decoding, enough for sums to matter


class WrongBackendError(RuntimeError):
    """A backend's results are too far from the definition for its speed to mean anything."""


def relative_rms_error(actual: Tensor, expected: Tensor) -> float:
    """``‖actual - expected‖ / ‖expected‖`` in float64: 0 is equal, NaN anywhere in ``actual`` gives NaN."""
    expected = expected.double()
    return float((actual.double() - expected).norm() / expected.norm())


def check_errors(what: str, errors: dict[str, float], dtype: torch.dtype) -> None:
    """Raise WrongBackendError if an error of ``what`` exceeds the tolerance of ``dtype``."""
    bound = TOLERANCES[dtype]
    wrong = {name: error for name, error in errors.items() if not error <= bound}
    if wrong:
        found = ", ".join(f"{name} {error:.1e}" for name, error in wrong.items())
        raise WrongBackendError(
            f"{what} is not timed because it is wrong in {dtype}: relative RMS error against the float64 reference: "
            f"{found}; at most {bound:.0e} is allowed"
        )


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
    inputs = _random_inputs(_SHAPE, dtype, feature_dim, head_dim, seed).to(device)
    expected = _outputs("reference", inputs.to(torch.float64), backward)
    actual = _outputs(backend, inputs, backward)
    errors = {name: relative_rms_error(actual[name], expected[name]) for name in expected}
    check_errors(f"backend {backend!r} on {device.type}", errors, dtype)
    return max(errors.values())


def check_step(
    *,
    backend: str = "auto",
    device: torch.device,
    dtype: torch.dtype,
    feature_dim: int = 16,
    head_dim: int = 12,
    seed: int = 0,
) -> float:
    """The relative RMS error of the outputs of some steps in a row, in place, as they are timed."""
    B, H = 2, 3
    inputs = _random_inputs((B, _STEPS, H), dtype, feature_dim, head_dim, seed).to(device)
    expected = _outputs("reference", inputs.to(torch.float64), backward=False)["output"]
    state = initial_state(REBASED, B, H, feature_dim, head_dim, device=device, dtype=sums_dtype(dtype))
    steps = []
    with torch.no_grad():
        for t in range(_STEPS):
            q, k, v = inputs.q[:, t], inputs.k[:, t], inputs.v[:, t]
            steps.append(kernel_attention_step(q, k, v, state, REBASED, inplace=True, backend=backend)[0])
    error = relative_rms_error(torch.stack(steps, dim=1), expected)
    check_errors(f"kernel_attention_step on {device.type}", {"output": error}, dtype)
    return error


def _random_inputs(
    shape: tuple[int, int, int], dtype: torch.dtype, feature_dim: int, head_dim: int, seed: int
) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    q, k, v, grad_output = (
        torch.randn(*shape, size, generator=generator, dtype=torch.float64).to(dtype)
        for size in (feature_dim, feature_dim, head_dim, head_dim)
    )
    grad_output[:, :UNSETTLED] = 0
    return Inputs(q=q, k=k, v=v, grad_output=grad_output)


def _outputs(backend: str, inputs: Inputs, backward: bool) -> dict[str, Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel_attention(q, k, v, REBASED, backend=backend)

    outputs = build_call(attend, inputs, "both" if backward else "forward")()
    return dict(zip(("output", "dq", "dk", "dv"), outputs, strict=False))
