"""A step that is to be recorded as a CUDA graph may not ask for a number: here tensors have none to give."""

import pytest
import torch
from recall_cases import small_run

from rebased.models.stacks import STACKS
from rebased.training.stacked import StackedModels


@pytest.mark.parametrize("stack", STACKS)
def test_models_ask_for_nothing(stack: str) -> None:
    """Of our own operators this takes the shapes alone: whether they ask, their own tests tell."""
    run = small_run(stack)
    models = StackedModels(run.model(), [1, 2], device="meta")
    R, B, P = 2, 4, 3

    def indices(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, dtype=torch.int64, device="meta")

    losses, grads = models.gradients(
        indices(R, B, run.seq_len),
        indices(R, B, P),
        indices(R, B, P),
        counts=torch.empty(B, device="meta"),
        step=0,
    )
    predicted = models.predictions(indices(B, run.seq_len), indices(B, P))
    assert losses.shape == (R,)
    assert [x.shape for x in grads] == [x.shape for x in models.weights.values()]
    assert predicted.shape == (R, B, P)
