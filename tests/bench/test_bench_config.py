"""A bench's config refuses what cannot be run, naming the field."""

from typing import Any

import pytest
import torch

from rebased.bench.config import OpsBenchConfig, backends_on


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("device", "tpu", "device='tpu' is unknown; it may be 'cpu', 'cuda'"),
        ("dtype", "int8", "dtype='int8' is unknown; it may be 'float32'"),
        ("backends", ("sdpa",), "backends='sdpa' is unknown; it may be .*chunked"),
        ("backends", (), "backends is empty"),
        ("backends", ("chunked", "chunked"), "backends=chunked,chunked names an entry twice"),
        ("lengths", (), "lengths is empty"),
        ("lengths", (512, 0), "lengths=0 must be at least 1"),
        ("lengths", (512, -1), "lengths=-1 must be at least 1"),
        ("lengths", (512, 512), "lengths=512,512 names an entry twice"),
        ("peers", ("sdpa",), "peers='sdpa' is unknown; it may be 'parallel_rebased'"),
        ("peers", ("parallel_based", "parallel_based"), "peers=.* names an entry twice"),
        ("passes", ("backward",), "passes='backward' is unknown; it may be 'forward', 'both'"),
        ("passes", (), "passes is empty"),
        ("batch_size", 0, "batch_size=0"),
        ("tokens", 0, "tokens=0"),
        ("tokens", 1000, "tokens=1000 is no multiple of the length 512"),
        ("sdpa_heads", 0, "sdpa_heads=0"),
        ("sdpa_head_dim", -1, "sdpa_head_dim=-1"),
        ("num_heads", 0, "num_heads=0"),
        ("feature_dim", 0, "feature_dim=0"),
        ("head_dim", 0, "head_dim=0"),
        ("threads", 0, "threads=0"),
        ("graphs", True, "graphs=True needs device='cuda'"),
        ("min_repetitions", 0, "min_repetitions=0"),
        ("min_seconds", -1.0, "min_seconds=-1"),
        ("min_seconds", float("nan"), "min_seconds=nan"),
        ("min_seconds", float("inf"), "min_seconds=inf"),
        ("max_reference_length", -1, "max_reference_length=-1"),
        ("max_sdpa_length", -1, "max_sdpa_length=-1"),
        ("max_peer_length", -1, "max_peer_length=-1"),
    ],
)
def test_bad_value(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OpsBenchConfig(**{field: value})


def test_absent_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = OpsBenchConfig(device="cuda")
    with pytest.raises(ValueError, match="device='cuda' was asked for"):
        config.check_machine()


def test_more_threads_than_processors() -> None:
    with pytest.raises(ValueError, match="threads=99999 is more than"):
        OpsBenchConfig(threads=99999).check_machine()


def test_tokens_and_batch_size_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="tokens=8192 and batch_size=2 exclude each other"):
        OpsBenchConfig(tokens=8192, batch_size=2)


@pytest.mark.parametrize(
    ("options", "batches"),
    [({}, [1, 1]), ({"batch_size": 3}, [3, 3]), ({"tokens": 64}, [4, 2])],
    ids=["default", "batch_size", "tokens"],
)
def test_batch_size_at_a_length(options: dict[str, Any], batches: list[int]) -> None:
    config = OpsBenchConfig(lengths=(16, 32), **options)
    assert [config.batch_at(length) for length in config.lengths] == batches


def test_sdpa_has_our_shape_unless_told() -> None:
    assert OpsBenchConfig(num_heads=3, head_dim=5).sdpa_shape == (3, 5)
    assert OpsBenchConfig(num_heads=64, head_dim=12, sdpa_heads=12, sdpa_head_dim=64).sdpa_shape == (12, 64)


def test_order_of_candidates() -> None:
    config = OpsBenchConfig(backends=("chunked",), peers=("parallel_based",))
    assert config.candidates == ("chunked", "sdpa", "parallel_based")


def test_backends_of_a_device() -> None:
    assert backends_on("cpu") == ("reference", "chunked")
    assert "triton" in backends_on("cuda")
