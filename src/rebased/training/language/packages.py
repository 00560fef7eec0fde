"""What training of language models needs to be installed."""

from rebased.training.language.config import RunOptions
from rebased.training.packages import require_packages

__all__ = ["check_training_packages"]


def check_training_packages(options: RunOptions) -> None:
    """ImportError, saying what to install, for what is not there."""
    boards = [*(["tensorboard"] if options.board else []), *(["wandb"] if options.wandb_project is not None else [])]
    require_packages("training of language models", "transformers", "accelerate", "safetensors", *boards)
