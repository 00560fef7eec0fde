"""Fine-tuning with transformers' Trainer on a small text.

The text is the Zen of Python, as bytes. Give a folder that ``save_pretrained`` wrote, of a model of bytes, to go on
from it; without one, a small model starts anew. Afterwards it recites, and is saved to ``runs/finetune``.

    python examples/finetune.py [FOLDER]
"""

import codecs
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from rebased.corpora import byte_tokenizer
from rebased.hf import RebasedConfig, RebasedForCausalLM


def zen() -> str:
    with redirect_stdout(StringIO()):  # importing it prints it
        import this
    return codecs.decode(this.s, "rot13")


class Windows(Dataset[dict[str, Tensor]]):
    """One for each byte that a window can start at."""

    def __init__(self, tokens: Tensor, length: int) -> None:
        self.windows = tokens.unfold(0, length, 1)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.windows[index], "labels": self.windows[index]}


def make_model(folder: Path | None, vocab_size: int) -> torch.nn.Module:
    if folder is not None:
        if not (folder / "config.json").is_file():  # else it would be looked for on the Hub
            raise SystemExit(f"{folder} holds no model: there is no config.json")
        return AutoModelForCausalLM.from_pretrained(folder)
    return RebasedForCausalLM(
        RebasedConfig(
            vocab_size=vocab_size,
            hidden_size=96,
            num_attention_heads=8,
            num_hidden_layers=2,
            layer_types=["short_conv", "rebased"],
            max_position_embeddings=128,
        )
    )


def main(folder: Path | None = None, num_steps: int = 200, saved: Path = Path("runs/finetune")) -> str:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    text = zen()
    model = make_model(folder, len(tokenizer))
    with TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            max_steps=num_steps,
            per_device_train_batch_size=16,
            learning_rate=1e-2,
            lr_scheduler_type="cosine",
            logging_steps=50,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        data = Windows(torch.tensor(tokenizer.encode(text)), 128)
        Trainer(model=model, args=arguments, train_dataset=data).train()
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)

    prompt = tokenizer("There should be", return_tensors="pt").input_ids
    model.eval()
    found = model.generate(prompt, max_new_tokens=100, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    written: str = tokenizer.decode(found[0])
    print(written)
    print(f"saved to {saved}; to hear more: rebased lm generate {saved} 'Now is'")
    return written


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
