"""``rebased::step`` and ``rebased::step_``: a decoding step as one operator, which torch does not look into.

The second writes the state it is given. Neither is differentiable: what needs gradients is computed in plain torch.
"""

from typing import Any

import torch
from torch import Tensor

from rebased.ops.dtypes import rounding

_LIBRARY = torch.library.Library("rebased", "FRAGMENT")
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? coefficients, Tensor? key_mask"
_SETTINGS = "int[] degrees, float scale, float eps, bool normalize, bool nonnegative"
_NUM_TENSORS = 10


def _step(*arguments: Any) -> list[Tensor]:
    new_state = [torch.empty_like(x) for x in arguments[5:_NUM_TENSORS] if x is not None]
    return [_run(arguments, new_state), *new_state]


def _step_inplace(*arguments: Any) -> Tensor:
    return _run(arguments, [x for x in arguments[5:_NUM_TENSORS] if x is not None])


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
    return [_out_fake(*arguments), *(torch.empty_like(x) for x in arguments[5:_NUM_TENSORS] if x is not None)]


def _fold(info: Any, in_dims: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """The mapped axis joins the batch."""

    def join(x: Tensor | None, dim: int | None) -> Tensor | None:
        if x is None:
            return None
        x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        return x.flatten(0, 1).contiguous()  # of one sequence, flatten would give a view without strides

    tensors = [join(x, dim) for x, dim in zip(arguments[:_NUM_TENSORS], in_dims[:_NUM_TENSORS], strict=True)]
    return [*tensors, *arguments[_NUM_TENSORS:]]


def _step_vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[list[Tensor], list[int]]:
    results = step(*_fold(info, in_dims, arguments))
    return [x.unflatten(0, (info.batch_size, -1)) for x in results], [0] * len(results)


def _step_inplace_vmap(info: Any, in_dims: Any, *arguments: Any) -> tuple[Tensor, int]:
    if any(x is not None and dim is None for x, dim in zip(arguments[5:10], in_dims[5:10], strict=True)):
        raise ValueError("inplace=True under vmap needs a state that is mapped over")
    out, *new_state = step(*_fold(info, in_dims, arguments))
    state = [(x, dim) for x, dim in zip(arguments[5:10], in_dims[5:10], strict=True) if x is not None]
    for (old, dim), new in zip(state, new_state, strict=True):
        old.copy_(new.unflatten(0, (info.batch_size, -1)).movedim(0, dim))
    return out.unflatten(0, (info.batch_size, -1)), 0


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
