"""`rebased lm generate`: what a model makes of a prompt.

Example: ``rebased lm generate DIR "Once upon a time" --max-new-tokens 50``
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from rebased.cli.console import STOPPED, fail
from rebased.cli.model_folder import check_model_folder
from rebased.training.devices import DEVICES, choose_device, current
from rebased.training.packages import require_packages

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
    check_model_folder(folder)
    if top_p < 1 and temperature == 0:
        raise typer.BadParameter("--top-p needs a --temperature above 0: without one nothing is drawn")
    try:
        require_packages("generation", "transformers")
        from transformers import TextStreamer

        from rebased.analysis.saved_model import load_saved_model

        saved = load_saved_model(folder)
        model = saved.model.to(place)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        fail(error)
    tokenizer = saved.tokenizer
    if tokenizer is None:
        fail(f"{folder} has no tokenizer beside its model")
    tokens = _tokens(tokenizer, prompt, place)
    most, length = saved.max_positions, tokens["input_ids"].shape[1]
    longest = length + max_new_tokens - 1  # nothing is asked of the last one
    if most is not None and longest > most:
        fail(f"a prompt of {length} tokens and {max_new_tokens} new ones are more than the model's {most} positions")
    trained = saved.trained_length
    if trained is not None and longest > trained:
        print(f"note: it was trained with {trained} tokens; what follows may be of no use after them", file=sys.stderr)
    torch.manual_seed(seed)
    how: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_p": top_p}
    try:
        streamer = TextStreamer(tokenizer, skip_special_tokens=True)
        with current(place):
            model.generate(
                **tokens, max_new_tokens=max_new_tokens, streamer=streamer, pad_token_id=tokenizer.pad_token_id, **how
            )
    except KeyboardInterrupt:
        print()  # after what was being written
        fail("stopped", status=STOPPED)
    except (ValueError, RuntimeError) as error:
        fail(error)


def _tokens(tokenizer: Any, prompt: str, device: str) -> dict[str, Any]:
    """Of an empty prompt, the token that texts begin with."""
    tokens = tokenizer(prompt, return_tensors="pt")["input_ids"].long()
    if tokens.shape[1] == 0:
        if prompt or tokenizer.bos_token_id is None:
            fail(f"the tokenizer makes no tokens of {prompt!r}")
        tokens = torch.tensor([[tokenizer.bos_token_id]])
    return {"input_ids": tokens.to(device), "attention_mask": torch.ones_like(tokens).to(device)}
