"""A language model on disk: weights and configuration as transformers saves them, and what is known of its training."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rebased.runs import TRAINING

__all__ = ["SavedModel", "load_saved_model"]

_CONFIGS = ("config.json", "adapter_config.json")
"""Of a model, and of one that peft made of another."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, kw_only=True)
class SavedModel:
    model: Any
    """Of `AutoModelForCausalLM`, in evaluation mode."""
    tokenizer: Any | None
    """None where none was saved beside the weights."""
    training: dict[str, Any] = field(default_factory=dict)
    """The content of `TRAINING`; empty where there is none."""

    @property
    def num_parameters(self) -> int:
        """Shared ones count once."""
        return sum(x.numel() for x in self.model.parameters())

    @property
    def max_positions(self) -> int | None:
        """The longest text it takes; None where nothing limits it."""
        config = self.model.config
        is_ours = config.model_type == "rebased"
        return self.model.model.backbone.max_len if is_ours else getattr(config, "max_position_embeddings", None)

    @property
    def usual_length(self) -> int | None:
        """The length of text that it was trained with, or else made for; None where nothing says so.

        Positions that a model has but never saw in training would only add noise.
        """
        return self.trained_length or getattr(self.model.config, "max_position_embeddings", None)

    @property
    def trained_length(self) -> int | None:
        """None where nothing is known of its training."""
        return self.training.get("config", {}).get("seq_len")

    def note_on_length(self, length: int, *, was_chosen: bool) -> str | None:
        """What a reader of an evaluation on windows of this length should know; ``was_chosen``: by the reader."""
        trained = self.trained_length
        if trained is not None and length > trained:
            return f"windows of {length} tokens: it was trained with {trained}, and later positions may be untrained"
        if trained is None and not was_chosen:
            return f"windows of {length} tokens: the length it was trained with is unknown"
        return None


def load_saved_model(folder: Path | str) -> SavedModel:
    """Weights are float32, whatever they were saved in. ValueError, naming the folder, for what is none or broken."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    if not any((folder / name).is_file() for name in _CONFIGS):
        raise ValueError(f"{folder} has no {_CONFIGS[0]}: it is no model")
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rebased.hf.quietly import without_progress_bars  # and transformers finds the classes of rebased.hf from now on

    try:
        with without_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
        has_tokenizer = any((folder / name).exists() for name in _TOKENIZER_FILES)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True) if has_tokenizer else None
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise ValueError(f"{folder} has no model that can be loaded: {error}") from error
    model, found = loaded
    wrong = [name for kind in ("missing_keys", "mismatched_keys") for name in found[kind]]
    if wrong:  # transformers would go on with random weights in their places
        raise ValueError(
            f"{folder} lacks weights of its model, or has them in other shapes: {', '.join(map(str, wrong))}"
        )
    return SavedModel(model=model.eval(), tokenizer=tokenizer, training=_read_training(folder / TRAINING))


def _read_training(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds no JSON object")
    return values
