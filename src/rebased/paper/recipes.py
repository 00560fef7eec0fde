"""What several experiments share: fields of their runs, and when a test says that something differs."""

from typing import Any

__all__ = ["ALPHA", "PAPER", "SMOKE"]

ALPHA = 0.05
"""A difference is shown where a test's p-value is below this."""
PAPER: dict[str, Any] = {
    "learning_rate": [5e-4, 1e-3, 3e-3, 1e-2],
    "seed": [42, 43, 44, 45, 46],
    "dtype": "bfloat16",
}
"""What is not here is the paper's by default."""

SMOKE: dict[str, Any] = {
    "vocab_size": 128,
    "num_train": 1024,
    "num_test": 128,
    "batch_size": 64,
    "epochs": 2,
    "dtype": "float32",
}
"""Some seconds on a CPU."""
