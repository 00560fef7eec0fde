"""Operators that torch does not look into: one definition for autograd, torch.func, vmap, compile and export.

`torch.library.custom_op` with ``register_autograd`` would be the obvious way, but its operators do not work under
`torch.func.grad`, and under `torch.func.jvp` they return a tangent of zero in silence (torch 2.13). So autograd is
attached one level lower: an `torch.autograd.Function` is the operator's kernel for the Autograd dispatch key.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function  # type: ignore[attr-defined]
from torch.autograd.forward_ad import _is_fwd_grad_enabled, _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

_LIBRARY = torch.library.Library("rebased", "DEF")


def define_composite(schema: str, *, implementation: Callable[..., Any], vmap: Callable[..., Any]) -> Any:
    """Define ``rebased::name`` as a composite of torch's own operators, which all of torch looks into but vmap.

    ``vmap`` is as in `define_operator`.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, implementation, "CompositeImplicitAutograd")
    operator = getattr(torch.ops.rebased, name).default
    torch.library.register_vmap(f"rebased::{name}", partial(vmap, operator), lib=_LIBRARY)
    return operator


def define_operator(
    schema: str,
    *,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> Any:
    """Define ``rebased::name`` from its schema and return it.

    ``implementation`` runs on real tensors of any device, ``fake`` gives shapes and dtypes. ``vmap`` takes
    (operator, info, in_dims, *arguments): the operator defined here, then what `torch.library.register_vmap` has.
    Without a ``backward``, differentiating raises RuntimeError; forward-mode differentiation always does.
    """
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)

    def run(*arguments: Any) -> Any:
        with torch._C._DisableAutocast():  # autocast reaches into operators: products of sums would be in bfloat16
            return implementation(*arguments)

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rebased::{name}", fake, lib=_LIBRARY)
    operator = getattr(torch.ops.rebased, name).default
    torch.library.register_vmap(f"rebased::{name}", partial(vmap, operator), lib=_LIBRARY)

    def forward(*arguments_and_modes: Any) -> Any:
        # Inside a Function both modes of differentiation are off. Outer levels of torch.func still have to record the
        # call, or to refuse it (else jvp(grad(f)) returns zeros in silence), unless the caller had switched them off.
        *arguments, grad_mode, forward_mode = arguments_and_modes
        with (
            torch.set_grad_enabled(grad_mode),
            _set_fwd_grad_enabled(forward_mode),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return operator(*arguments)

    def save(ctx: Any, inputs: Any, output: Any) -> None:
        if setup_context is not None:
            setup_context(ctx, inputs[:-2], output)

    def differentiate(ctx: Any, *grads: Any) -> Any:
        if backward is None:
            raise RuntimeError(f"rebased::{name} cannot be differentiated (again): double backward is not supported")
        return *backward(ctx, *grads), None, None

    function: Any = type(
        f"{name.title().replace('_', '')}Function",
        (_SingleLevelFunction,),
        {
            "forward": staticmethod(forward),
            "setup_context": staticmethod(save),
            "backward": staticmethod(differentiate),
        },
    )

    def autograd_kernel(*arguments: Any) -> Any:
        # Dispatch has already peeled off torch.func's outer levels: this one level is all the Function must handle.
        with enable_single_level_autograd_function():
            modes = torch.is_grad_enabled(), _is_fwd_grad_enabled()
            return function.apply(*arguments, *modes)

    _LIBRARY.impl(name, autograd_kernel, "Autograd")
    return operator
