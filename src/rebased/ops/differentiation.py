"""Whether anything wants a derivative: operators without one must not be used then."""

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad


def is_differentiated(x: Tensor) -> bool:
    """Whether autograd, torch.func or forward-mode differentiation follows x, also through vmap.

    Inside vmap a tensor does not say that what it wraps requires gradients.
    """
    if torch.compiler.is_compiling():
        return torch.is_grad_enabled() and x.requires_grad
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
        return True
    stack = _functorch.get_interpreter_stack() or []
    if any(level.key() in (_functorch.TransformType.Grad, _functorch.TransformType.Jvp) for level in stack):
        return True
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    return torch.is_grad_enabled() and x.requires_grad
