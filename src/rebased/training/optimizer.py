"""AdamW for stacked replicas: one learning rate each, one update for all."""

import itertools
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["AdamW"]

BETAS = (0.9, 0.999)
EPS = 1e-8


class AdamW:
    """Loshchilov and Hutter 2019, as `torch.optim.AdamW` computes it, on parameters (R, …)."""

    def __init__(self, parameters: Sequence[Tensor], *, weight_decay: float, compile: bool = False) -> None:
        self.parameters = list(parameters)
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.weight_decay = weight_decay
        self.num_steps = 0
        # From numbers on the device: copying one there would have the device wait for Python at every step.
        self._betas = torch.tensor(BETAS, dtype=torch.float64, device=self.parameters[0].device)
        self._update = torch.compile(_update) if compile else _update

    def step(self, grads: Iterable[Tensor], learning_rates: Float[Tensor, " R"]) -> None:
        self.num_steps += 1
        # Numbers that change from step to step are given as tensors: a compiled update is compiled once.
        first, second = (1 - self._betas**self.num_steps).to(learning_rates.dtype)
        rates, decays = learning_rates / first, 1 - learning_rates * self.weight_decay
        stacked = self.parameters, list(grads), self.means, self.squares
        if len(learning_rates) > 1:  # compiled for any number of replicas: some will leave
            for x in itertools.chain(*stacked, (rates, decays)):
                torch._dynamo.maybe_mark_dynamic(x, 0)
        with torch.no_grad():
            self._update(*stacked, rates, decays, second.sqrt())

    def keep(self, rows: Tensor, parameters: Sequence[Tensor]) -> None:
        """Go on with some replicas only, whose parameters are given."""
        self.parameters = list(parameters)
        self.means, self.squares = ([x[rows].contiguous() for x in xs] for xs in (self.means, self.squares))


def _update(
    parameters: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    rates: Float[Tensor, " R"],
    decays: Float[Tensor, " R"],
    correction: Float[Tensor, ""],
) -> None:
    """``rates`` are already divided by the first moment's bias, ``correction`` is the root of the second's."""
    for p, grad, mean, square in zip(parameters, grads, means, squares, strict=True):
        per_replica = (-1, *(1 for _ in p.shape[1:]))
        mean.lerp_(grad, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        p.mul_(decays.view(per_replica))
        p.sub_(rates.view(per_replica) * mean / (square.sqrt() / correction + EPS))
