"""Which device trains."""

import pytest
import torch

from rebased.training.devices import choose_device, device_of_worker


@pytest.fixture
def _two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("_two_gpus")
def test_gpus_are_taken_where_there_are_some() -> None:
    assert [choose_device(name) for name in ("auto", "cpu", "cuda", "cuda:1")] == ["cuda", "cpu", "cuda", "cuda:1"]
    assert [device_of_worker("cuda", worker) for worker in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_of_worker("cuda:1", 0) == "cuda:1"
    with pytest.raises(ValueError, match="device='cuda:2' was asked for, but there are only 2"):
        choose_device("cuda:2")


def test_without_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    assert device_of_worker("cpu", 3) == "cpu"
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        choose_device("cuda:0")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:0", "cuda:<index>"])
def test_unknown_device(name: str) -> None:
    with pytest.raises(ValueError, match="is unknown; it may be auto, cpu, cuda"):
        choose_device(name)
