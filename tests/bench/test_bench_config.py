"""A bench's config refuses what cannot be run, naming the field."""

from typing import Any

import pytest
import torch

from rebased.bench.config import OpsBenchConfig


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("device", "tpu", "device: 'tpu' is unknown; it may be cpu, cuda"),
        ("dtype", "int8", "dtype: 'int8' is unknown; it may be float32"),
        ("backends", ("sdpa",), "backends: 'sdpa' is unknown; it may be .*chunked"),
        ("backends", (), "backends is empty"),
        ("backends", ("chunked", "chunked"), "backends: chunked, chunked names an entry twice"),
        ("lengths", (), "lengths is empty"),
        ("lengths", (512, 0), "lengths: 0 is not a positive integer"),
        ("lengths", (512, -1), "lengths: -1 is not a positive integer"),
        ("lengths", (512, 512), "lengths: 512, 512 names an entry twice"),
        ("batch_size", 0, "batch_size: 0"),
        ("num_heads", 0, "num_heads: 0"),
        ("feature_dim", 0, "feature_dim: 0"),
        ("head_dim", 0, "head_dim: 0"),
        ("threads", 0, "threads: 0"),
        ("min_repetitions", 0, "min_repetitions: 0"),
        ("min_seconds", -1.0, "min_seconds=-1"),
        ("min_seconds", float("nan"), "min_seconds=nan"),
        ("min_seconds", float("inf"), "min_seconds=inf"),
        ("max_reference_length", -1, "max_reference_length=-1"),
        ("max_sdpa_length", -1, "max_sdpa_length=-1"),
    ],
)
def test_bad_value(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OpsBenchConfig(**{field: value})


def test_absent_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = OpsBenchConfig(device="cuda")
    with pytest.raises(ValueError, match="device: 'cuda' was asked for"):
        config.check_machine()


def test_more_threads_than_processors() -> None:
    with pytest.raises(ValueError, match="threads: 99999 is more than"):
        OpsBenchConfig(threads=99999).check_machine()


def test_sdpa_comes_last() -> None:
    assert OpsBenchConfig(backends=("chunked",)).candidates == ("chunked", "sdpa")
