"""How far a backend may be from the oracle, and what counts as far.

The bound is the larger of a fixed one and a multiple of what rounding does to the definition itself: gradients of one
or two tokens are mostly cancellation, and no relative bound can hold for them.
"""

import torch
from torch import Tensor

RELATIVE_RMS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 5e-3}
"""Against the float64 oracle on the same rounded inputs."""


def relative_rms(actual: Tensor, expected: Tensor) -> float:
    """‖actual - expected‖ / ‖expected‖, inf for NaN; 0 if both are zero."""
    difference = (actual.double() - expected.double()).norm().item()
    if difference == 0:
        return 0.0
    size = expected.double().norm().item()
    ratio = difference / size if size else float("inf")
    return ratio if ratio == ratio else float("inf")


def assert_close_in_float64(
    actual: dict[str, Tensor], expected: dict[str, Tensor], other: dict[str, Tensor], *, floor: float
) -> None:
    """Each of ``actual`` within 1e-10 of max(‖expected‖, floor), or within 10 times what separates two formulations.

    ``floor`` is ‖dL/dy‖·‖y‖: the size of the terms that a gradient is the sum of, whatever is left of them.
    """
    assert actual.keys() == expected.keys() == other.keys()
    for name, want in expected.items():
        size = want.norm().item() if name == "out" else max(want.norm().item(), floor)
        bound = max(RELATIVE_RMS[torch.float64] * size, 10 * (want - other[name]).norm().item())
        error = (actual[name] - want).norm().item()
        assert error <= bound, f"{name}: off by {error:.2e}, allowed {bound:.2e}, size {want.norm().item():.2e}"


def assert_close_in(
    dtype: torch.dtype,
    actual: dict[str, Tensor],
    expected: dict[str, Tensor],
    baseline: dict[str, Tensor],
    *,
    floor: float = 0.0,
) -> None:
    """Relative RMS error of each within the dtype's bound, or 3 times that of ``baseline``.

    ``baseline`` is the definition itself computed in the same precision. ``floor`` as in `assert_close_in_float64`,
    for single tokens: their output is v whatever q and k are, so all of dq is rounding error, in the oracle too.
    """
    assert actual.keys() == expected.keys() == baseline.keys()
    for name, want in expected.items():
        size = want.double().norm().item()
        allowed = RELATIVE_RMS[dtype] * (max(size, floor) if name.startswith("d") else size)
        allowed = max(allowed, 3 * (baseline[name].double() - want.double()).norm().item())
        error = (actual[name].double() - want.double()).norm().item()
        assert error <= allowed, f"{name}: off by {error:.2e}, allowed {allowed:.2e}, size {size:.2e}"
