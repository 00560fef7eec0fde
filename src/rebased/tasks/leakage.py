"""Whether what a model is tested on was among what it was trained on."""

import torch

from rebased.tasks.examples import Examples

__all__ = ["count_shared"]


def count_shared(train: Examples, test: Examples) -> int:
    """The number of test sequences that occur among the training sequences, token by token."""
    if train.inputs.shape[1] != test.inputs.shape[1]:
        return 0
    _, index = torch.unique(torch.cat([train.inputs, test.inputs.to(train.inputs)]), dim=0, return_inverse=True)
    return int(torch.isin(index[len(train) :], index[: len(train)]).sum())
