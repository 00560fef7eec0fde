"""What a caller can get wrong: the checks of the operators' arguments, and the words for it.

Checks of shapes and types are plain Python. Checks of values (positions, borders) are operators that return their
input: they run when the numbers are there, also inside a compiled graph.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rebased.kernels import Kernel, check_kernel
from rebased.ops.opaque import define_operator
from rebased.ops.state import KernelState
from rebased.replay import is_capturing

INPUT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_qkv(q: Tensor, k: Tensor, v: Tensor, *, axes: str) -> None:
    """Shapes, dtypes and devices of queries, keys and values, whose axes are named, e.g. ``B T H F``.

    The last axis of v may differ from that of q and k, and the heads of k and v may be fewer.
    """
    names = axes.split()
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; it must be a tensor")
        if x.ndim != len(names):
            raise ValueError(f"{name} has shape {_shape(x)}; it must have {len(names)} axes ({', '.join(names)})")
        check_dtype(name, x)
        if 0 in x.shape[-2:]:
            raise ValueError(f"{name} has shape {_shape(x)}; its heads and their size must not be empty")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}, q on {q.device}; all must be on one device")
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"{name} has batch size {x.shape[0]}, q has {q.shape[0]}; they must agree")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k has feature_dim {k.shape[-1]}, q has {q.shape[-1]}; they must agree")
    if v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"v has shape {_shape(v)}, k {_shape(k)}; all but the last axis must agree")
    if q.shape[-2] % k.shape[-2]:
        raise ValueError(f"k has {k.shape[-2]} heads, q has {q.shape[-2]}; the number of key heads must divide q's")


def check_dtype(name: str, x: Tensor) -> None:
    if x.dtype not in INPUT_DTYPES:
        raise ValueError(f"{name} has dtype {x.dtype}; it may be float16, bfloat16, float32 or float64")


def check_same_dtype(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Called on what autocast left: outside it nothing is cast in silence."""
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ValueError(f"{name} has dtype {x.dtype}, q has {q.dtype}; outside autocast they must agree")


def check_floats(name: str, x: Tensor, axes: str) -> None:
    """A tensor of numbers, of at least size 1 on its last axis, whose axes are named, e.g. ``B T M``."""
    names = axes.split()
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; it must be a tensor")
    check_dtype(name, x)
    if x.ndim != len(names):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must have {len(names)} axes ({', '.join(names)})")
    if x.shape[-1] == 0:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; its last axis must not be empty")


def check_like(name: str, x: Tensor, shape: Sequence[int], first_name: str, first: Tensor) -> None:
    """Shape, and that x is where the first tensor is."""
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {tuple(shape)} to go with {first_name}")
    if x.device != first.device:
        raise ValueError(f"{name} is on {x.device}, {first_name} on {first.device}; all must be on one device")


def check_state_dtype(name: str, x: Tensor, dtype: torch.dtype) -> None:
    if x.dtype != dtype:
        raise ValueError(f"{name} has dtype {x.dtype}; these inputs need {dtype}")


def check_settings(kernel: Kernel, scale: float | None, eps: float, **switches: bool) -> None:
    check_switches(**switches)
    check_kernel(kernel)
    if scale is not None:
        _check_number("scale", scale)
    check_eps(eps)


def check_switches(**switches: bool) -> None:
    for name, switch in switches.items():
        if not isinstance(switch, bool):
            raise TypeError(f"{name} is {switch!r}; it must be True or False")


def check_eps(eps: float) -> None:
    _check_number("eps", eps)
    if eps < 0:
        raise ValueError(f"eps={eps} must not be negative")


def check_key_mask(key_mask: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    _check_tensor("key_mask", key_mask, device)
    if key_mask.dtype != torch.bool:
        raise ValueError(f"key_mask has dtype {key_mask.dtype}; it must be bool, True for real keys")
    if tuple(key_mask.shape) != tuple(shape):
        raise ValueError(f"key_mask has shape {_shape(key_mask)}; it must be {tuple(shape)}, one entry per key")


def check_queries(q: Tensor, k: Tensor, at: Tensor | None) -> None:
    """The queries' number: one a key, or one for each entry of ``at``."""
    if at is None:
        if q.shape[1] != k.shape[1]:
            raise ValueError(f"q has {q.shape[1]} positions, k has {k.shape[1]}; they must agree unless `at` is given")
        return
    _check_integers("at", at, q.device)
    if tuple(at.shape) != tuple(q.shape[:2]):
        raise ValueError(f"at has shape {_shape(at)}; it must be {tuple(q.shape[:2])}, a position for each query")


def check_positions(at: Tensor, batch_size: int, device: torch.device) -> None:
    """Of outputs, where there is no query to go by."""
    _check_integers("at", at, device)
    if at.ndim != 2 or at.shape[0] != batch_size:
        raise ValueError(f"at has shape {_shape(at)}; it must be ({batch_size}, P), positions for each sequence")


def check_cu_seqlens(cu_seqlens: Tensor, batch_size: int, device: torch.device) -> None:
    _check_integers("cu_seqlens", cu_seqlens, device)
    if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(f"cu_seqlens has shape {_shape(cu_seqlens)}; it must be (N + 1,) for N sequences")
    if batch_size != 1:
        raise ValueError(f"cu_seqlens packs sequences in one row: the batch size must be 1, got {batch_size}")


def check_state(
    state: KernelState, kernel: Kernel, *, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    if not isinstance(state, KernelState):
        raise TypeError(f"state is a {type(state).__name__}; it must be a KernelState")
    if state.kernel != kernel.name:
        raise ValueError(f"state was made by the kernel {state.kernel!r}; this one is {kernel.name!r}")
    for name, x, expected in (
        ("state.values", state.values, shape),
        ("state.normalizer", state.normalizer, shape[:3]),
        ("state.count", state.count, shape[:1]),
        ("state.values_residual", state.values_residual, shape),
        ("state.normalizer_residual", state.normalizer_residual, shape[:3]),
    ):
        if x is None:  # a residual may be absent
            continue
        if tuple(x.shape) != tuple(expected):
            raise ValueError(f"{name} has shape {_shape(x)}; these inputs need {tuple(expected)}")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device}, q on {device}; all must be on one device")
        needed = {"state.values": dtype, "state.normalizer": dtype, "state.count": torch.int64}.get(name, x.dtype)
        if x.dtype != needed:
            raise ValueError(f"{name} has dtype {x.dtype}; these inputs need {needed}")


def check_features(kernel: Kernel, features: Tensor, x: Tensor) -> None:
    """What a feature map made of x."""
    if features.ndim != x.ndim or features.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"kernel {kernel.name!r} maps {_shape(x)} to {_shape(features)}; it must keep all axes but the last"
        )


def checked_positions(positions: Tensor, limit: int, name: str) -> Tensor:
    """``positions`` as int64, after a check that each is in 0 .. limit - 1."""
    checked: Tensor = _checked_positions(positions.to(torch.int64), limit, name)
    return checked


def checked_borders(cu_seqlens: Tensor, seq_len: int) -> Tensor:
    """``cu_seqlens`` as int64, after a check that it rises from 0 to ``seq_len``."""
    checked: Tensor = _checked_borders(cu_seqlens.to(torch.int64), seq_len)
    return checked


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _check_number(name: str, value: Any) -> None:
    if isinstance(value, (bool, Tensor)) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    if not -math.inf < value < math.inf:  # math.isfinite would break a graph where numbers are symbols
        raise ValueError(f"{name}={value} must be finite")


def _check_tensor(name: str, x: Any, device: torch.device) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; it must be a tensor")
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}, the inputs on {device}; all must be on one device")


def _check_integers(name: str, x: Any, device: torch.device) -> None:
    _check_tensor(name, x, device)
    if x.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} has dtype {x.dtype}; it must be int32 or int64")


def _can_look_at(x: Tensor) -> bool:
    """Reading values back is illegal while a CUDA graph is being captured; such graphs are checked when warmed up."""
    return x.numel() > 0 and not is_capturing(x)


def _check_positions(positions: Tensor, limit: int, name: str) -> Tensor:
    if _can_look_at(positions):
        low, high = (int(x) for x in positions.aminmax())
        if low < 0 or high >= limit:
            raise ValueError(f"{name} reaches from {low} to {high}; positions must be in 0 .. {limit - 1}")
    return positions.clone()


def _check_borders(cu_seqlens: Tensor, seq_len: int) -> Tensor:
    if _can_look_at(cu_seqlens):
        if bool((cu_seqlens.diff(dim=-1) < 0).any()):
            raise ValueError(f"cu_seqlens={cu_seqlens.tolist()} must not decrease")
        if bool((cu_seqlens[..., 0] != 0).any()) or bool((cu_seqlens[..., -1] != seq_len).any()):
            raise ValueError(f"cu_seqlens={cu_seqlens.tolist()} must begin with 0 and end with {seq_len}, the length")
    return cu_seqlens.clone()


def _row_by_row(operator: Any, _: Any, in_dims: Any, rows: Tensor, *others: Any) -> tuple[Tensor, int]:
    """Under vmap: the checks look along the last axis."""
    return operator(rows.movedim(in_dims[0], 0), *others), 0


_checked_positions = define_operator(
    "checked_positions(Tensor positions, SymInt limit, str name) -> Tensor",
    implementation=_check_positions,
    fake=lambda positions, limit, name: torch.empty_like(positions),
    vmap=_row_by_row,
)
_checked_borders = define_operator(
    "checked_borders(Tensor cu_seqlens, SymInt seq_len) -> Tensor",
    implementation=_check_borders,
    fake=lambda cu_seqlens, seq_len: torch.empty_like(cu_seqlens),
    vmap=_row_by_row,
)
