"""What a run is, and how it is run."""

from dataclasses import asdict, dataclass, field
from typing import Any

from rebased.checks import check_choice, check_integer, check_not_negative, check_positive_number

__all__ = ["DTYPES", "LanguageRunConfig", "RunOptions", "steps_for"]

DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, kw_only=True)
class LanguageRunConfig:
    """What decides a run's losses, beside the corpus. The defaults are the paper's recipe.

    The schedule after warm-up is not published; ours is a cosine to a tenth.
    """

    model: str = "rebased"
    """A name of `rebased.hf.PRESETS`."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of `rebased.hf.RebasedConfig` that differ from the preset's. Not `fused_loss`, which is a `RunOptions`."""
    seq_len: int = 4096
    batch_size: int = 1024
    """Sequences of a step, over all devices and micro-batches."""
    steps: int = 20_000
    learning_rate: float = 1e-3
    """After warm-up."""
    final_fraction: float = 0.1
    """How much of `learning_rate` is left at the end of the cosine: 0.1 is a tenth."""
    warmup_steps: int = 200
    weight_decay: float = 0.1
    """Of embeddings and weights that multiply; not of biases, norms, γ, β and a mixer's other parameters."""
    clip: float = 1.0
    """The largest norm of all gradients; 0 leaves them as they are."""
    beta1: float = 0.9
    beta2: float = 0.999
    seed: int = 0
    """Of the weights at the start, the order of the data, and dropout."""
    dtype: str = "bfloat16"
    """What products are computed in; weights and their gradients are float32 with either."""
    crossing: bool = True
    """Whether a sequence may run on into the next document, as if it were one text."""

    def __post_init__(self) -> None:
        for name in ("seq_len", "batch_size", "steps"):
            check_integer(name, getattr(self, name))
        if self.seq_len < 2:
            raise ValueError("seq_len=1 leaves nothing to predict; it must be 2 or more")
        for name in ("warmup_steps", "seed"):
            check_integer(name, getattr(self, name), least=0)
        if self.seed >= 2**32:
            raise ValueError(f"seed={self.seed} must be less than 2**32, which is all that numpy takes")
        check_positive_number("learning_rate", self.learning_rate)
        for name in ("weight_decay", "clip"):
            check_not_negative(name, getattr(self, name))
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be from 0 to below 1")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(
                f"final_fraction={self.final_fraction} must be from 0 to 1, the share of learning_rate that is left"
            )
        if "fused_loss" in self.changes:
            raise ValueError(
                f"fused_loss={self.changes['fused_loss']!r} does not belong to changes: it is how a run is run, as "
                "RunOptions(fused_loss=False) or --no-fused-loss"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps={self.warmup_steps} must be less than steps={self.steps}")
        check_choice("dtype", self.dtype, DTYPES)

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is run. All but `fsdp` may change when it goes on: losses then differ by rounding, if at all."""

    device: str = "auto"
    micro_batch: int | None = None
    """Sequences at a time on one device; by default as many as have `MICRO_BATCH_TOKENS`."""
    compile: bool | None = None
    """Whether layers are compiled, each kind once; by default on a GPU, unless sequences end with documents."""
    fused_loss: bool = True
    """Whether the loss is computed without the logits."""
    gradient_checkpointing: bool = False
    """Whether layers are computed again in the backward pass, for memory."""
    fsdp: bool = False
    """Whether weights are sharded over the processes (FSDP2) instead of copied to each; checkpoints are so, too."""
    checkpoint_every: int = 500
    """Steps between checkpoints; there is always one of the last step."""
    keep: int = 2
    """How many checkpoints there are at most; 0 keeps all."""
    eval_every: int = 500
    """Steps between losses on the validation split; 0 is only at the end."""
    eval_sequences: int = 64
    board: bool = True
    """Whether TensorBoard's event files are written."""
    wandb_project: str | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_every", "eval_sequences"):
            check_integer(name, getattr(self, name))
        for name in ("keep", "eval_every"):
            check_integer(name, getattr(self, name), least=0)
        if self.micro_batch is not None:
            check_integer("micro_batch", self.micro_batch)


def steps_for(tokens: int, *, batch_size: int, seq_len: int) -> int:
    """The least number of steps that see so many tokens."""
    check_integer("tokens", tokens)
    return -(-tokens // max(batch_size * seq_len, 1))
