"""Small runs for the tests of training."""

from typing import Any

from rebased.training.recall import RecallConfig

SMALL: dict[str, Any] = {
    "d_model": 12,
    "seq_len": 16,
    "task_options": {"num_pairs": 3},
    "vocab_size": 40,
    "num_train": 20,
    "num_test": 9,
    "batch_size": 8,
    "epochs": 3,
}


def small_run(stack: str = "rebased", *, learning_rate: float = 1e-2, seed: int = 0, **changes: Any) -> RecallConfig:
    return RecallConfig(stack=stack, learning_rate=learning_rate, seed=seed, **SMALL | changes)
