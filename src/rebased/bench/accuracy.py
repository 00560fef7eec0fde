"""How far each candidate is from float64 at the very sizes that are timed."""

import math
from dataclasses import dataclass

import torch

from rebased.bench.candidates import Attend, Inputs, build_call
from rebased.bench.oracle import Rows, attend_by_rows, kernel_rows, softmax_rows
from rebased.bench.peers import PEERS
from rebased.bench.verify import relative_rms_error
from rebased.kernels import REBASED

__all__ = ["Accuracy", "measure_accuracy"]

_HEADS = 2
_TOKENS = 8192  # compared per head, if there are as many: several short sequences, or a single long one


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Relative RMS errors of one candidate at one length, on the first sequences and heads of a whole call.

    Its oracle is its own definition in float64 on the same rounded inputs: softmax attention for SDPA, the kernel's
    for the others. An error is None if it was not measured, or is not finite.
    """

    candidate: str
    length: int
    sequences: int
    """Compared, of the batch."""
    heads: int
    """Compared, of each sequence."""
    output: float | None
    dq: float | None = None
    dk: float | None = None
    dv: float | None = None

    @property
    def errors(self) -> dict[str, float]:
        """Those that were measured, by name."""
        found = {name: getattr(self, name) for name in ("output", "dq", "dk", "dv")}
        return {name: error for name, error in found.items() if error is not None}


def measure_accuracy(
    candidate: str, attend: Attend, inputs: Inputs, *, backward: bool, tokens: int = _TOKENS
) -> tuple[Accuracy, dict[str, float]]:
    """The record, and the same errors by name, NaN among them.

    The call is whole, as it will be timed; the comparison takes ``tokens`` tokens of each of two heads.
    """
    B, T, H = inputs.q.shape[:3]
    sequences, heads = min(B, max(1, tokens // T)), min(H, _HEADS)
    actual = build_call(attend, inputs, "both" if backward else "forward")()
    expected = attend_by_rows(_definition(candidate), inputs.first(sequences, heads).to(torch.float64))
    errors = {
        name: relative_rms_error(mine[:sequences, :, :heads], exact)
        for name, mine, exact in zip(("output", "dq", "dk", "dv"), actual, expected, strict=False)
    }
    finite = {name: error for name, error in errors.items() if math.isfinite(error)}
    record = Accuracy(candidate=candidate, length=T, sequences=sequences, heads=heads, **({"output": None} | finite))
    return record, errors


def _definition(candidate: str) -> Rows:
    if candidate == "sdpa":
        return softmax_rows
    return kernel_rows(PEERS[candidate].kernel if candidate in PEERS else REBASED)
