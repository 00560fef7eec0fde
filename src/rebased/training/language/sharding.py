"""Weights sharded over the processes (FSDP2), as transformers and accelerate do it, with our arithmetic."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

__all__ = ["SHARDING", "embeddings_in_the_root", "keep_float32", "local_part"]

SHARDING: dict[str, Any] = {
    "fsdp": True,
    "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Block"]},
}
"""For `TrainingArguments`: every block is gathered when it computes; the rest with the whole model."""


def local_part(x: Tensor) -> Tensor:
    """What this process has of a weight: all of it, unless it is sharded; then maybe nothing."""
    return x.to_local() if hasattr(x, "to_local") else x


def keep_float32(arguments: Any) -> None:
    """Gathered weights and summed gradients stay float32, as without shards; products are autocast's.

    By default accelerate would have everything in bf16, losses too.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    arguments.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy()


@contextmanager
def embeddings_in_the_root(model: Any) -> Iterator[None]:
    """Hide embeddings and head from accelerate while it wraps the model, so that they belong to the root FSDP unit.

    A unit of their own would be gathered only while one of them is called, and the fused loss takes the head's weight
    without calling it.
    """
    names = ("get_input_embeddings", "get_output_embeddings")
    for name in names:
        setattr(model, name, lambda: None)
    try:
        yield
    finally:
        for name in names:
            delattr(model, name)
