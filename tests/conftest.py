"""Set up before any of the package is imported: shape checks inside the operator, poisoned allocations, profiles."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook

from interpreter import hasten

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
    if find_spec("triton"):
        hasten()

# jaxtyping's checks at runtime break fullgraph compilation, so they cover what torch never traces into.
_INSIDE_THE_OPERATOR = (
    "blocks",
    "chunked",
    "expansion",
    "problem",
    "scan",
    "terms",
    "tile_attention",
    "tiles",
)
if find_spec("beartype"):  # CI always has it; a machine with a GPU may not
    install_import_hook([f"rebased.ops.{module}" for module in _INSIDE_THE_OPERATOR], "beartype.beartype")

if not torch.cuda.is_available():
    # Memory from torch.empty is then filled with NaN: what an operator forgets to write shows. (On a GPU the same
    # switch forbids operations that have no deterministic form.)
    torch.use_deterministic_algorithms(True)

hypothesis.settings.register_profile(
    "default",
    deadline=None,  # first calls compile and allocate
    derandomize=True,  # the same cases on every machine; `--hypothesis-profile=explore` looks further
    max_examples=100,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("default")


@pytest.fixture
def _forget_compilations() -> Iterator[None]:
    """What was compiled before counts towards the number of recompilations that dynamo puts up with."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
