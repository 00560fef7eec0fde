"""Training on a CUDA device, compiled and recorded: against the CPU, and against itself."""

import pytest
import torch
from recall_cases import small_run

from rebased.training.graph import RecordedCall
from rebased.training.replicas import Replicas
from rebased.training.sizing import fitting

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("stack", ["rebased", "based", "attention", "rwkv", "mamba", "hyena", "h3", "rfa", "cosformer"])
def test_learns_what_it_learns_on_a_cpu(stack: str) -> None:
    runs = [small_run(stack, seed=seed, learning_rate=1e-3, num_train=36) for seed in (1, 2, 3)]
    losses = []
    for device in ("cpu", "cuda"):
        replicas = Replicas(runs, device=device)
        records = [replicas.train_epoch()]
        replicas.leave([1])
        records.append(replicas.train_epoch())
        losses.append([record.loss for epoch in records for record in epoch.values()])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(("dtype", "micro_batches"), [("float32", 1), ("bfloat16", 2)])
def test_going_on_is_never_having_stopped(dtype: str, micro_batches: int) -> None:
    runs = [small_run(seed=seed, epochs=4, dtype=dtype) for seed in range(3)]
    straight = Replicas(runs, device="cuda", micro_batches=micro_batches)
    straight.train_epoch()
    straight.leave([1])
    state = straight.epoch, list(straight.active), straight.tensors()
    after = [straight.train_epoch()]
    resumed = Replicas(runs, device="cuda", micro_batches=micro_batches)
    resumed.load(*state)
    assert [resumed.train_epoch()] == after
    for name, x in straight.tensors().items():
        assert torch.equal(x, resumed.tensors()[name]), name


def test_a_recorded_call_reads_its_inputs_anew() -> None:
    weight = torch.ones(3, device="cuda", requires_grad=True)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = (weight * x).square().sum()
        return [y.detach(), *torch.autograd.grad(y, weight)]

    recorded = RecordedCall(function, [torch.zeros(3, device="cuda")])
    for _ in range(3):
        x = torch.randn(3, device="cuda")
        for actual, expected in zip(recorded(x), function(x), strict=True):
            torch.testing.assert_close(actual, expected)
        with torch.no_grad():
            weight.add_(0.5)


def test_as_many_as_fit() -> None:
    small, large = (
        fitting(small_run(d_model=48, seq_len=length, vocab_size=8192, batch_size=512, num_train=512), 50, "cuda")
        for length in (64, 4096)
    )
    assert small == (32, 1)
    assert large[0] >= 1
    assert large[0] / large[1] < small[0]
