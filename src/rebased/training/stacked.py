"""Models of one shape as one: their weights stacked, their losses computed by one program."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.func import functional_call

from rebased.layers.dropout import derive_keys, use_keys
from rebased.models import LanguageModel, ModelConfig
from rebased.training.graph import RecordedCall

__all__ = ["StackedModels", "compiler_options"]

Weights = dict[str, Tensor]


class StackedModels:
    """R models with weights (R, …), each initialised from a seed of its own.

    Dropout depends on a model's seed and the step alone, so what a model learns does not depend on its company, up to
    the rounding of larger products.
    """

    def __init__(
        self,
        config: ModelConfig,
        seeds: Sequence[int],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        autocast: torch.dtype | None = None,
        compile: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self._autocast = autocast
        models = [_initialised(config, seed) for seed in seeds]
        self._template = _initialised(config, 0).to("meta")
        self._key_names = use_keys(self._template)
        self.seeds = torch.tensor(list(seeds), device=device)

        def stack(named: Callable[[LanguageModel], Iterator[tuple[str, Tensor]]]) -> Weights:
            by_name = [dict(named(model)) for model in models]
            return {name: torch.stack([x[name].detach() for x in by_name]).to(device) for name in by_name[0]}

        self.weights = {
            name: x.to(dtype).requires_grad_() for name, x in stack(lambda model: model.named_parameters()).items()
        }
        self.buffers = {
            name: x.to(dtype) if x.is_floating_point() else x
            for name, x in stack(lambda model: model.named_buffers()).items()
        }
        # A function of the template, not of this object: a cycle would keep a GPU's memory until it is found.
        losses = torch.vmap(partial(_mean_loss, self._template), in_dims=(0, 0, 0, 0, 0, None))
        self._losses = torch.compile(losses, options=compiler_options()) if compile else losses
        self._records = compile and self.device.type == "cuda"
        self._recorded_step: RecordedCall | None = None
        self._recorded_test: RecordedCall | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    def gradients(
        self,
        tokens: Int[Tensor, "R B T"],
        positions: Int[Tensor, "R B P"],
        answers: Int[Tensor, "R B P"],
        *,
        counts: Float[Tensor, " B"],
        step: int,
        first_row: int = 0,
    ) -> tuple[Float[Tensor, " R"], list[Tensor]]:
        """Mean cross-entropy at labelled positions, of the examples that count (1; 0 for padding), and its gradients.

        ``first_row``: which row of its step's batch these begin with. Gradients are in the order of ``weights``, and
        the next call may overwrite them.
        """
        keys = derive_keys(self.seeds, step, len(self._key_names), first_row=first_row)
        inputs = tokens, positions, answers, counts, keys
        if self._records and self._recorded_step is None:
            self._recorded_step = RecordedCall(self._gradients, inputs)
        losses, *grads = (self._recorded_step or self._gradients)(*inputs)
        return losses, grads

    def _gradients(
        self, tokens: Tensor, positions: Tensor, answers: Tensor, counts: Tensor, keys: Tensor
    ) -> list[Tensor]:
        buffers = self.buffers | dict(zip(self._key_names, keys, strict=True))
        self._template.train()
        if len(self) > 1:  # compiled for any number of models: some will leave
            for x in (*self.weights.values(), *buffers.values(), tokens, positions, answers):
                torch._dynamo.maybe_mark_dynamic(x, 0)
        with self._casts():
            losses = self._losses(self.weights, buffers, tokens, positions, answers, counts)
        return [losses.detach(), *torch.autograd.grad(losses.sum(), list(self.weights.values()))]

    def predictions(self, tokens: Int[Tensor, "B T"], positions: Int[Tensor, "B P"]) -> Int[Tensor, "R B P"]:
        """The most likely token at each position, of all models for the same examples; the next call may overwrite it.

        Shapes may not change until models leave.
        """
        if self._records and self._recorded_test is None:
            self._recorded_test = RecordedCall(self._predictions, [tokens, positions])
        (predicted,) = (self._recorded_test or self._predictions)(tokens, positions)
        return predicted

    @torch.no_grad()
    def _predictions(self, tokens: Tensor, positions: Tensor) -> list[Tensor]:
        self._template.eval()

        def predict(weights: Weights, buffers: Weights) -> Tensor:
            keys = dict.fromkeys(self._key_names, torch.zeros(2, dtype=torch.int64, device=self.device))
            logits = functional_call(self._template, (weights, buffers | keys), (tokens,), {"at": positions})
            return logits.argmax(dim=-1)

        with self._casts():
            return [torch.vmap(predict)(self.weights, self.buffers)]

    def not_finite(self) -> Bool[Tensor, " R"]:
        """Which models have a weight that is NaN or infinite."""
        return ~torch.stack([x.detach().isfinite().flatten(1).all(dim=1) for x in self.weights.values()]).all(dim=0)

    def moments(self, pattern: re.Pattern[str]) -> dict[str, Float[Tensor, "R 2"]]:
        """Mean and standard deviation (n) of the parameters in whose names the pattern is found, of each model."""
        chosen = {name: x.detach().flatten(1) for name, x in self.weights.items() if pattern.search(name)}
        return {name: torch.stack([x.mean(dim=1), x.std(dim=1, correction=0)], dim=1) for name, x in chosen.items()}

    def keep(self, rows: Int[Tensor, " K"]) -> None:
        """Go on with some of the models only."""
        self._recorded_step = self._recorded_test = None
        self.seeds = self.seeds[rows]
        self.weights = {name: x.detach()[rows].contiguous().requires_grad_() for name, x in self.weights.items()}
        self.buffers = {name: x[rows].contiguous() for name, x in self.buffers.items()}

    def weights_of(self, row: int) -> Weights:
        """As `LanguageModel.load_state_dict` takes them."""
        return {name: x[row].detach().clone() for name, x in self.weights.items()}

    def _casts(self) -> AbstractContextManager[object]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._autocast)


def compiler_options() -> dict[str, Any]:
    """Of `torch.compile`, for a step."""
    from rebased.training.long_sums import SplitLongSums  # loads the compiler, which takes seconds

    return {
        # The compiler times variants of a kernel that add in other orders, and would not always choose the same.
        "deterministic": True,
        # Without timing it would not pad matrices either. Values are 12 wide at d = 16 and 60 at d = 64: two products
        # with such rows, which do not begin at multiples of 16 bytes, took a fifth of a step.
        "force_shape_pad": True,
        "post_grad_custom_pre_pass": SplitLongSums(),
    }


def _mean_loss(
    model: LanguageModel,
    weights: Weights,
    buffers: Weights,
    tokens: Tensor,
    positions: Tensor,
    answers: Tensor,
    counts: Tensor,
) -> Tensor:
    losses = functional_call(model, (weights, buffers), (tokens,), {"at": positions, "labels": answers})
    return (losses.mean(dim=1) * counts).sum() / counts.sum()


def _initialised(config: ModelConfig, seed: int) -> LanguageModel:
    """On the CPU, whose generator gives the same numbers everywhere."""
    with _own_random_numbers(seed):
        return LanguageModel(config)


@contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
