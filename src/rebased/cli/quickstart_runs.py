"""What the quickstart trains: four models on recall, a small cell on a CPU and one of the paper's on a GPU."""

from dataclasses import replace

from rebased.models import STACKS
from rebased.training.recall import RecallConfig

__all__ = ["MODELS", "quickstart_note", "quickstart_runs"]

MODELS = {"conv_attention": "Attention", "based": "Based", "rebased": "ReBased", "x2": "x²"}
"""The stacks and what people call them, as tables have them."""
SEEDS = (42, 43, 44)

_LONGEST_FIRST = ("x2", "based", "rebased", "conv_attention")
"""Several processes then end at about the same time."""
_SMALL_KERNEL_MIXERS = {"num_heads": 2, "feature_dim": 16}

_ALIKE = "Every model has two layers, a short convolution and then its mixer (Attention is the paper's ConvAttention)."


def quickstart_runs(device: str) -> list[RecallConfig]:
    """All seeds and learning rates of all models."""
    make = _paper_run if device.startswith("cuda") else _small_run
    rates = (1e-3, 3e-3) if device.startswith("cuda") else (4e-3, 8e-3)
    return [make(stack, rate, seed) for stack in _LONGEST_FIRST for rate in rates for seed in SEEDS]


def quickstart_note(device: str) -> str:
    """How the models and their training relate to the paper's."""
    if device.startswith("cuda"):
        return f"{_ALIKE} Sizes and recipe are the paper's, with fewer epochs, seeds and learning rates."
    return (
        f"{_ALIKE} Sizes are for minutes on two CPU cores, not the paper's. What else differs, for all alike, so that "
        "they learn it in this time: kernel mixers have 2 heads instead of 12, there are no position embeddings (the "
        "convolution tells which value follows which key), and no dropout of embeddings (no example comes twice)."
    )


def _small_run(stack: str, learning_rate: float, seed: int) -> RecallConfig:
    seq_len = 48
    conv, mixer = STACKS[stack](seq_len)
    if mixer.mixer in ("based", "rebased"):
        mixer = replace(mixer, options=mixer.options | _SMALL_KERNEL_MIXERS)
    return RecallConfig(
        stack=stack,
        d_model=64,
        seq_len=seq_len,
        learning_rate=learning_rate,
        seed=seed,
        task_options={"num_pairs": 6},
        model_options={"layers": (conv, mixer), "embedding_dropout": 0.0, "positions": "none"},
        vocab_size=64,
        num_train=4_000,
        num_test=500,
        endless=True,
        epochs=16,
        batch_size=32,
    )


def _paper_run(stack: str, learning_rate: float, seed: int) -> RecallConfig:
    """A column of Table 1, cut short."""
    return RecallConfig(
        stack=stack,
        d_model=48,
        seq_len=256,
        learning_rate=learning_rate,
        seed=seed,
        task_options={"num_pairs": 32},
        epochs=20,
        dtype="bfloat16",
    )
