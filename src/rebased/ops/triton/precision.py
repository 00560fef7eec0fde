"""What products of float32 numbers may do."""

import torch

__all__ = ["allows_tf32"]


def allows_tf32() -> bool:
    """What torch's own float32 products may do; its old getter refuses to answer once the new setting was used."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.get_float32_matmul_precision() != "highest" if precision is None else precision == "tf32"
