"""``rebased::step`` and ``rebased::step_``: a decoding step as one operator, which torch does not look into.

The second writes the state it is given. Neither is differentiable: what needs gradients is computed in plain torch.
"""

from typing import Any

import torch
from torch import Tensor

from rebased.ops.dtypes import rounding
from rebased.ops.replicas import join_replicas

_LIBRARY = torch.library.Library("rebased", "FRAGMENT")
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? coefficients, Tensor? key_mask"
_SETTINGS = "int[] degrees, float scale, float eps, bool normalize, bool nonnegative"
_NUM_TENSORS = 10
_STATE = slice(5, _NUM_TENSORS)
"""Which of the arguments are the state's tensors."""


def _step(*arguments: Any) -> list[Tensor]:
    new_state = [torch.empty_like(x) for x in arguments[_STATE] if x is not None]
    return [_run(arguments, new_state), *new_state]


def _step_inplace(*arguments: Any) -> Tensor:
    return _run(arguments, [x for x in arguments[_STATE] if x is not None])


def _run(arguments: tuple[Any, ...], new_state: list[Tensor]) -> Tensor:
    from rebased.ops.triton import step  # Triton may not be installed

    q, k, v, coefficients, key_mask, *state = arguments[:_NUM_TENSORS]
    degrees, scale, eps, normalize, nonnegative = arguments[_NUM_TENSORS:]
    return step.step(
        q,
        k,
        v,
        coefficients,
        key_mask,
        [x for x in state if x is not None],
        new_state,
        tuple(degrees),
        scale,
        eps,
        normalize=normalize,
        nonnegative=nonnegative,
        rounding=rounding(torch.float32),
    )


def _out_fake(*arguments: Any) -> Tensor:
    q, _, v = arguments[:3]
    return v.new_empty(*q.shape[:2], v.shape[2])


def _step_fake(*arguments: Any) -> list[Tensor]:
    return [_out_fake(*arguments), *(torch.empty_like(x) for x in arguments[_STATE] if x is not None)]


def _step_vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    num_results = 1 + sum(x is not None for x in arguments[_STATE])
    inputs, outputs = (0,) * _NUM_TENSORS, (0,) * num_results
    return join_replicas(_step_dense, info, in_dims, *arguments, inputs=inputs, outputs=outputs)


def _step_dense(*arguments: Any) -> list[Tensor]:
    """One sequence that replicas share is joined to a view of stride 0, which the kernel does not read."""
    return step(*(x.contiguous() if isinstance(x, Tensor) else x for x in arguments))


def _step_inplace_vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Tensor, int]:
    state = [(x, dim) for x, dim in zip(arguments[_STATE], in_dims[_STATE], strict=True) if x is not None]
    if any(dim is None for _, dim in state):
        raise ValueError("inplace=True under vmap needs a state that is mapped over")
    (out, *new_state), _ = _step_vmap(info, in_dims, *arguments)
    for (old, dim), new in zip(state, new_state, strict=True):
        old.copy_(new.movedim(0, dim))
    return out, 0


_LIBRARY.define(
    f"step({_INPUTS}, Tensor values, Tensor normalizer, Tensor count, Tensor? values_residual, "
    f"Tensor? normalizer_residual, {_SETTINGS}) -> Tensor[]"
)
_LIBRARY.define(
    f"step_({_INPUTS}, Tensor(a!) values, Tensor(b!) normalizer, Tensor(c!) count, Tensor(d!)? values_residual, "
    f"Tensor(e!)? normalizer_residual, {_SETTINGS}) -> Tensor"
)
for _name, _implementation, _fake, _vmap in (
    ("step", _step, _step_fake, _step_vmap),
    ("step_", _step_inplace, _out_fake, _step_inplace_vmap),
):
    _LIBRARY.impl(_name, _implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rebased::{_name}", _fake, lib=_LIBRARY)
    torch.library.register_vmap(f"rebased::{_name}", _vmap, lib=_LIBRARY)

step = torch.ops.rebased.step.default
step_inplace = torch.ops.rebased.step_.default
