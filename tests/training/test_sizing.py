"""How many runs train together."""

import weakref

import pytest
import torch
from recall_cases import small_run

from rebased.training import sizing
from rebased.training.sizing import CPU_REPLICAS, MAX_REPLICAS, USABLE_MEMORY, _choose, fitting


@pytest.mark.parametrize(
    ("fixed", "per_example", "num_wanted", "expected"),
    [
        (1.0, 0.01, 40, (MAX_REPLICAS, 1)),  # more would fit
        (1.0, 0.1, 40, (9, 1)),  # 100 / (1 + 10)
        (1.0, 0.2, 40, (9, 2)),  # 4 would fit: batches in two parts give 9
        (1.0, 0.2, 4, (4, 1)),  # so many are all that there are
        (1.0, 0.2, 5, (9, 2)),
        (20.0, 0.2, 40, (4, 4)),  # 20 of 100 each, however small the parts
        (200.0, 1.0, 1, (1, 100)),  # not even one; it is tried all the same
    ],
)
def test_parts_before_few_replicas(
    fixed: float, per_example: float, num_wanted: int, expected: tuple[int, int]
) -> None:
    assert _choose(100, fixed, per_example, usable=100.0, num_wanted=num_wanted) == expected


def test_on_a_cpu_nothing_is_tried() -> None:
    assert fitting(small_run(), 20, "cpu") == (CPU_REPLICAS, 1)
    assert fitting(small_run(), 20, "cpu", num_sharing=2) == (CPU_REPLICAS // 2, 1)
    assert fitting(small_run(), 20, "cpu", num_sharing=50) == (1, 1)


def test_processes_share_memory_and_not_the_limit_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "_step_bytes", lambda config, num_examples, device: 1 + num_examples)
    example = small_run()
    needed = 1 + example.batch_size

    def found(free: float, num_sharing: int) -> tuple[int, int]:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free / USABLE_MEMORY, None))
        return fitting(example, 50, "cuda", num_sharing=num_sharing)

    assert found(4.01 * MAX_REPLICAS * needed, 4) == (MAX_REPLICAS, 1)
    assert found(40.01 * needed, 4) == (10, 1)


def test_a_probe_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch kept it, and what was counted as free was without it, also for other processes."""
    made = list[weakref.ref["Probe"]]()
    kept = list[bool]()

    class Probe:
        def __init__(self, *_: object, **__: object) -> None:
            self.cycle = self  # as models have
            made.append(weakref.ref(self))

        def train_epoch(self) -> None:
            pass

    monkeypatch.setattr(sizing, "Replicas", Probe)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 3)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 10)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: kept.append(made[-1]() is not None))
    assert sizing._step_bytes(small_run(), 4, torch.device("cpu")) == 7
    assert kept == [False]
