"""`rebased lm generate`: what a model makes of a prompt.

Example: ``rebased lm generate DIR "Once upon a time" --max-new-tokens 50``
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from rebased.cli.console import fail
from rebased.training.devices import DEVICES, choose_device

__all__ = ["generate"]


def generate(
    folder: Annotated[Path, typer.Argument(help="A model and its tokenizer, as save_pretrained writes them.")],
    prompt: Annotated[str, typer.Argument(help="What to go on from.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add at most.")] = 100,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token each time.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Draw from so much of the probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 0,
    device: Annotated[str, typer.Option(help=f"One of {', '.join(DEVICES)}.")] = "auto",
) -> None:
    """Go on from a prompt, token by token as they come."""
    try:
        place = choose_device(device)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

        import rebased.hf  # noqa: F401  # its classes are found from now on

        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder)
        model.to(place).eval()
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        fail(error)
    tokens = tokenizer(prompt, return_tensors="pt").to(place)
    torch.manual_seed(seed)
    how: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_p": top_p}
    try:
        streamer = TextStreamer(tokenizer, skip_special_tokens=True)
        model.generate(
            **tokens, max_new_tokens=max_new_tokens, streamer=streamer, pad_token_id=tokenizer.pad_token_id, **how
        )
    except KeyboardInterrupt:
        fail("stopped")
    except ValueError as error:
        fail(error)
