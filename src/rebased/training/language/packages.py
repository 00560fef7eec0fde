"""Packages that are asked for only by those who use them: what is not installed is named before any work."""

from importlib.util import find_spec

from rebased.training.language.config import RunOptions

__all__ = ["check_packages", "check_training_packages"]


def check_packages(what: str, *packages: str) -> None:
    """ImportError, saying what to install, for the first that ``what`` needs and that is not there."""
    for package in packages:
        if find_spec(package) is None:
            raise ImportError(f"{what} needs {package}: pip install {package}")


def check_training_packages(options: RunOptions) -> None:
    boards = [*(["tensorboard"] if options.board else []), *(["wandb"] if options.wandb_project is not None else [])]
    check_packages("training of language models", "transformers", "accelerate", "safetensors", *boards)
