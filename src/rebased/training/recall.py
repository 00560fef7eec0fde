"""What determines the result of one recall run."""

import copy
import math
import re
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from inspect import signature
from typing import Any, Self

from rebased.checks import check_choice, check_integer, check_not_negative, check_positive_number
from rebased.models import LayerConfig, ModelConfig, preset
from rebased.models.config import check_fields, required_fields
from rebased.models.stacks import STACKS
from rebased.tasks import TASKS, Examples

__all__ = ["DTYPES", "RecallConfig"]

DTYPES = ("float32", "bfloat16", "float64")
_CAN_BE_MADE: set[str] = set()
RESERVED_OPTIONS = ("num_examples", "seq_len", "vocab_size", "seed", "first_example", "device")


@dataclass(frozen=True, kw_only=True)
class RecallConfig:
    """One run: a model, a task, and the paper's recipe unless told otherwise."""

    stack: str
    """A name of `rebased.models.STACKS`."""
    d_model: int
    seq_len: int
    learning_rate: float
    """In the first epoch; a cosine over the epochs takes it to 0."""
    seed: int
    """Of the initial weights, the order of examples, and dropout."""
    task: str = "mqar"
    """A name of `rebased.tasks.TASKS`."""
    task_options: dict[str, Any] = field(default_factory=dict)
    """The task's own settings: ``{"num_pairs": 32}``."""
    model_options: dict[str, Any] = field(default_factory=dict)
    """Fields of `ModelConfig` that differ from the preset."""
    vocab_size: int = 8192
    num_train: int = 100_000
    num_test: int = 3_000
    train_seed: int = 42
    test_seed: int = 52
    endless: bool = False
    """New examples every epoch, instead of the same ones in another order."""
    epochs: int = 64
    batch_size: int = 512
    weight_decay: float = 0.1
    stop_above: float = 0.99
    """A run ends after the epoch in which its accuracy on the test set reaches this."""
    dtype: str = "float32"
    """"float32", "float64", or "bfloat16": products by autocast, weights and sums in float32."""
    watch: str = ""
    """A regular expression: of parameters in whose name it is found, every epoch records mean and spread."""

    def __post_init__(self) -> None:
        for name in ("task_options", "model_options"):
            object.__setattr__(self, name, copy.deepcopy(getattr(self, name)))  # nobody else's to change
        reserved = [name for name in RESERVED_OPTIONS if name in self.task_options]
        if reserved:
            raise ValueError(f"task_options has {', '.join(reserved)}, which the run itself decides")
        for name in ("seed", "train_seed", "test_seed"):
            if type(getattr(self, name)) is not int or not 0 <= getattr(self, name) < 2**63:
                raise ValueError(f"{name}={getattr(self, name)!r} must be an integer from 0 to 2**63 - 1")
        if type(self.endless) is not bool:
            raise ValueError(f"endless={self.endless!r} must be true or false")
        for name in ("num_train", "num_test", "epochs", "batch_size"):
            check_integer(name, getattr(self, name))
        if self.batch_size > self.num_train:
            raise ValueError(f"batch_size={self.batch_size} must be at most num_train={self.num_train}")
        for name in ("learning_rate", "weight_decay", "stop_above"):
            value = getattr(self, name)
            if type(value) not in (int, float):
                raise ValueError(f"{name}={value!r} must be a number")
            object.__setattr__(self, name, float(value) + 0.0)  # 1 and 1.0, 0 and -0.0 are one run
        check_positive_number("learning_rate", self.learning_rate)
        check_not_negative("weight_decay", self.weight_decay)
        if not 0 < self.stop_above <= 1:
            raise ValueError(f"stop_above={self.stop_above} must be above 0 and at most 1")
        try:
            re.compile(self.watch)
        except (re.error, TypeError) as error:
            raise ValueError(f"watch={self.watch!r} is no regular expression: {error}") from error
        check_choice("dtype", self.dtype, DTYPES)
        if self.train_seed == self.test_seed:
            raise ValueError(f"train_seed and test_seed are both {self.train_seed}: the test set would be known")
        if self.stack not in STACKS:
            raise ValueError(f"stack={self.stack!r} is unknown; there are {', '.join(STACKS)}")
        if self.task not in TASKS:
            raise ValueError(
                f"task={self.task!r} is unknown; there are {', '.join(TASKS)}; one of your own must be imported first, "
                "so that it is in rebased.tasks.TASKS"
            )
        self._check_that_it_can_be_made()

    def _check_that_it_can_be_made(self) -> None:
        """Thousands of runs of a grid are alike in this; that one of them is fine is found out once."""
        names = ("stack", "d_model", "seq_len", "vocab_size", "task", "task_options", "model_options")
        what = repr([getattr(self, name) for name in names])
        if what not in _CAN_BE_MADE:
            self.model()
            self.test_set(num_examples=1)
            _CAN_BE_MADE.add(what)

    def model(self) -> ModelConfig:
        sizes = {"d_model": self.d_model, "seq_len": self.seq_len, "vocab_size": self.vocab_size}
        repeated = [name for name in sizes if name in self.model_options]
        if repeated:
            raise ValueError(f"model_options has {', '.join(repeated)}, which the run itself has")
        options = self.model_options
        if "layers" in options:  # from a file they are dictionaries
            layers = [LayerConfig(**layer) if isinstance(layer, dict) else layer for layer in options["layers"]]
            options = options | {"layers": tuple(layers)}
        return preset(f"mqar-{self.stack}", **sizes, **options)

    @property
    def steps_per_epoch(self) -> int:
        """The last one may have fewer examples."""
        return -(-self.num_train // self.batch_size)

    def learning_rate_in(self, epoch: int) -> float:
        """Of epoch 1, 2, …: a cosine in steps of an epoch, from `learning_rate` to what would be 0 after the last."""
        return self.learning_rate * (1 + math.cos(math.pi * (epoch - 1) / self.epochs)) / 2

    def train_set(self, epoch: int, device: Any = "cpu") -> Examples:
        """What epoch 1, 2, … trains on."""
        first = (epoch - 1) * self.num_train if self.endless else 0
        return self._examples(self.num_train, self.train_seed, device, first_example=first)

    def test_set(self, device: Any = "cpu", num_examples: int | None = None) -> Examples:
        return self._examples(self.num_test if num_examples is None else num_examples, self.test_seed, device)

    def _examples(self, count: int, seed: int, device: Any, **where: int) -> Examples:
        known = [name for name in signature(TASKS[self.task]).parameters if name not in RESERVED_OPTIONS]
        unknown = [name for name in self.task_options if name not in known]
        if unknown:
            raise ValueError(f"task_options has {', '.join(unknown)}; {self.task} has {', '.join(known)}")
        try:
            return TASKS[self.task](
                count,
                self.seq_len,
                **self.task_options,
                vocab_size=self.vocab_size,
                seed=seed,
                device=device,
                **where,
            )
        except TypeError as error:
            raise ValueError(f"task_options={self.task_options!r} do not fit task={self.task!r}: {error}") from error

    def cell(self) -> dict[str, Any]:
        """All but learning rate and seed: runs that are alike in this can be trained together."""
        return {name: value for name, value in self.to_dict().items() if name not in ("learning_rate", "seed")}

    def to_dict(self) -> dict[str, Any]:
        """Of plain types, for JSON."""
        values = asdict(self)
        if "layers" in self.model_options:
            values["model_options"]["layers"] = self.model().to_dict()["layers"]
        return values

    def identity(self) -> dict[str, Any]:
        """The fields that differ from their defaults, which name the run. So a new field renames no earlier run."""
        required = required_fields(type(self))
        defaults = {x.name: {} if x.default is MISSING else x.default for x in fields(self)}
        return {name: x for name, x in self.to_dict().items() if name in required or x != defaults[name]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """What `to_dict` gave. ValueError, listing what there is, for unknown names."""
        check_fields(cls, values)
        return cls(**values)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)
