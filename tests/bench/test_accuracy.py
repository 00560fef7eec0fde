"""Errors at the sizes that are timed: the whole call is made, a part of it compared."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rebased.bench.accuracy import measure_accuracy
from rebased.bench.candidates import build_attend, build_inputs
from rebased.bench.config import OpsBenchConfig
from rebased.kernels import BASED
from rebased.ops import kernel_attention

CONFIG = OpsBenchConfig(
    lengths=(64,), batch_size=3, num_heads=3, feature_dim=4, head_dim=5, dtype="bfloat16", peers=("parallel_based",)
)


def measure(candidate: str, attend: Any, **options: Any) -> tuple[Any, dict[str, float]]:
    return measure_accuracy(
        candidate, attend, build_inputs(candidate, 64, CONFIG), **({"backward": True, "tokens": 128} | options)
    )


@pytest.mark.parametrize("candidate", ["chunked", "sdpa"])
def test_errors_of_bfloat16(candidate: str) -> None:
    record, errors = measure(candidate, build_attend(candidate, CONFIG))
    assert (record.sequences, record.heads) == (2, 2)
    assert record.errors == errors
    assert errors.keys() == {"output", "dq", "dk", "dv"}
    for error in errors.values():
        assert 1e-4 < error < 1e-2  # a rounding of 8 bits, no less and not many


def test_a_peer_is_judged_by_its_own_kernel() -> None:
    _, errors = measure("parallel_based", lambda q, k, v: kernel_attention(q, k, v, BASED, backend="chunked"))
    assert max(errors.values()) < 1e-2
    _, errors = measure("parallel_based", lambda q, k, v: kernel_attention(q, k, v, backend="chunked"))
    assert max(errors.values()) > 0.1


def test_forward_alone_has_no_gradients() -> None:
    record, errors = measure("chunked", build_attend("chunked", CONFIG), backward=False)
    assert errors.keys() == record.errors.keys() == {"output"}
    assert record.dq is None


def test_other_sequences_and_heads_are_not_compared() -> None:
    """What is wrong outside the part that is compared does not count; inside, it does."""

    def spoilt(place: tuple[int, int]) -> float:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = kernel_attention(q, k, v, backend="chunked").clone()
            out[place[0], :, place[1]] = 100
            return out

        return measure("chunked", attend, backward=False)[1]["output"]

    assert spoilt((2, 0)) < 1e-2
    assert spoilt((0, 2)) < 1e-2
    assert spoilt((1, 1)) > 1


def test_nan_is_no_number_in_the_record() -> None:
    record, errors = measure("chunked", lambda q, k, v: v * torch.nan, backward=False)
    assert record.output is None
    assert record.errors == {}
    assert errors["output"] != errors["output"]
