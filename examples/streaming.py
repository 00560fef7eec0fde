"""A long sequence in pieces, with a state of constant size, which is saved to a file on the way and restored.

The state is all that the layer knows of the past, so it can be stored beside a document and gone on from at any later
time, on any machine, without reading the document again.

    python examples/streaming.py
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from rebased import KernelState, ReBased

WIDTH, PIECE = 64, 1024


def signal(num_tokens: int) -> Iterator[Tensor]:
    """Pieces of (1, up to PIECE, WIDTH) as they arrive; nobody holds all of them."""
    generator = torch.Generator().manual_seed(0)
    for start in range(0, num_tokens, PIECE):
        yield torch.randn(1, min(PIECE, num_tokens - start), WIDTH, generator=generator)


@torch.no_grad()
def main(num_tokens: int = 200_000) -> None:
    torch.manual_seed(0)
    layer = ReBased(WIDTH, num_heads=4)
    pieces = signal(num_tokens)
    state = layer.init_state(batch_size=1)
    for number, piece in enumerate(pieces, start=1):
        _, state = layer(piece, state=state)
        if number & (number - 1) == 0:
            print(f"{int(state.count):7,} tokens read, {state.nbytes:,} bytes kept")
    print(f"{int(state.count):7,} tokens read, {state.nbytes:,} bytes kept")

    with TemporaryDirectory() as folder:
        file = Path(folder) / "state.safetensors"
        state.save(file)
        restored = KernelState.load(file)
        print(f"saved in a file of {file.stat().st_size:,} bytes")

    token = torch.randn(1, 1, WIDTH)
    expected, _ = layer(token, state=state)
    actual, restored = layer(token, state=restored)
    assert torch.equal(actual, expected)
    print(f"the next token, number {int(restored.count):,}, has the same output from the file as from memory")


if __name__ == "__main__":
    main()
