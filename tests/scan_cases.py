"""Where and how the scans are tested: backends, dtypes, sizes."""

from functools import partial

import pytest
import torch

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
