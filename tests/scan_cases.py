"""Where and how the scans are tested: backends, dtypes, sizes, layouts in memory, inputs of replicas."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {
    "torch": [torch.float64, torch.float32, torch.float16, torch.bfloat16],
    # The interpreter's bfloat16 is not to be relied on.
    "triton": [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE == "cuda" else [])],
}
BACKENDS = pytest.mark.parametrize("backend", DTYPES)
BATCH_SIZES = {"torch": 2, "triton": 2 if DEVICE == "cuda" else 1}
"""The interpreter runs one program after another."""

compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "cut out": lambda x: torch.cat([x, x, x], dim=-1)[..., x.shape[-1] : 2 * x.shape[-1]],
    "time first": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "channels first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every other number": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "one token for all": lambda x: x[:, :1].expand_as(x),
}
"""Ways for a tensor (B, T, W) to lie in memory; in the last all tokens are equal."""


def random_replicas(
    shapes: Sequence[tuple[int, ...]],
    changes: Mapping[int, Callable[[Tensor], Tensor]],
    backend: str,
    dims: tuple[int | None, ...],
    size: int = 3,
) -> list[Tensor]:
    """Random inputs of these shapes, each with a new axis of different entries at its place in ``dims``, or none.

    ``changes``: what is done to those that not any number will do for, by their index.
    """
    dtype = torch.float64 if backend == "torch" else torch.float32
    inputs = []
    for i, (shape, dim) in enumerate(zip(shapes, dims, strict=True)):
        generator = torch.Generator().manual_seed(i)
        x = torch.randn(size, *shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)
        x = changes.get(i, lambda x: x)(x)
        inputs.append(x[0] if dim is None else x.movedim(0, dim).contiguous())
    return inputs
