"""Problems for wkv, the two oracles they are held to, and a call of it with its state undivided."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from rebased.ops import wkv_operator
from rebased.ops.triton import wkv as triton_wkv
from scan_cases import DEVICE, LAYOUTS
from tolerances import assert_close_in

module = importlib.import_module("rebased.ops.wkv")  # not the function of that name
WKVState, initial_wkv_state, wkv, wkv_step = module.WKVState, module.initial_wkv_state, module.wkv, module.wkv_step


def use_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks, and pieces of the batch and of groups, also for a few tokens; in Triton several steps a chunk."""
    monkeypatch.setattr(module, "CHUNK", 8)
    monkeypatch.setattr(wkv_operator, "PIECE_NUMBERS", 60)
    monkeypatch.setattr(triton_wkv, "WIDTH", 8)
    monkeypatch.setattr(triton_wkv, "FORWARD_STEPS", 4)
    monkeypatch.setattr(triton_wkv, "BACKWARD_STEPS", 2)


# ---- The oracles ----

Results = tuple[Tensor, Tensor, Tensor]
"""Output, and the last numerator and denominator as they are, not divided by anything."""


def by_sums(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, numerator: Tensor, denominator: Tensor, key_mask: Tensor
) -> Results:
    """The definition, with a weight for each pair of tokens; the past is one more token, before all others."""
    keys = k.where(key_mask[..., None], 0)[:, None]
    values = v.where(key_mask[..., None], 0)[:, None]
    count = key_mask.cumsum(dim=1)
    between = (count[:, :, None] - 1 - count[:, None, :])[..., None]  # (B, T, S, 1): tokens after s and before t
    seen = (key_mask[:, :, None] & key_mask[:, None, :])[..., None] & (between >= 0)
    weights = torch.where(seen, (keys - between.clamp(min=0) * decay).exp(), 0.0)
    own = (bonus + keys[:, 0]).exp()
    left = (-(count - 1)[..., None] * decay).exp()  # of the past, before each token
    above = (weights * values).sum(dim=2) + own * values[:, 0] + left * numerator[:, None]
    below = weights.sum(dim=2) + own + left * denominator[:, None]
    total = count[:, -1:, None]
    final = torch.where(key_mask[..., None], (keys[:, 0] - (total - count[..., None]) * decay).exp(), 0.0)
    left = (-total[:, 0] * decay).exp()
    last = (final * values[:, 0]).sum(dim=1) + left * numerator, final.sum(dim=1) + left * denominator
    return (above / below).where(key_mask[..., None], 0.0), *last


def by_steps(
    k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: tuple[Tensor, Tensor, Tensor], key_mask: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """One token after another, relative to a running maximum: for k whose exponentials do not exist."""
    numerator, denominator, maximum = state
    outs = []
    for t in range(k.shape[1]):
        key, value, real = k[:, t], v[:, t], key_mask[:, t, None]
        top = torch.maximum(maximum, bonus + key).detach()
        past, own = (maximum - top).exp(), (bonus + key - top).exp()
        out = (past * numerator + own * value) / (past * denominator + own)
        outs.append(out.where(real, 0))
        top = torch.maximum(maximum - decay, key).detach()
        past, own = (maximum - decay - top).exp(), (key - top).exp()
        numerator = (past * numerator + own * value).where(real, numerator)
        denominator = (past * denominator + own).where(real, denominator)
        maximum = top.where(real, maximum)
    return torch.stack(outs, dim=1), (numerator, denominator, maximum)


@dataclass(frozen=True)
class Problem:
    leaves: dict[str, Tensor]
    """k, v, decay, bonus and perhaps numerator, denominator and maximum."""
    douts: dict[str, Tensor]
    """Gradients of those of out, numerator and denominator that the loss depends on; the latter two undivided."""
    key_mask: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.leaves["v"].dtype

    @property
    def has_state(self) -> bool:
        return "numerator" in self.leaves

    def run(self, function: Callable[..., Results]) -> dict[str, Tensor]:
        """Results, and the gradient of each leaf."""
        leaves = {name: x.detach().requires_grad_() for name, x in self.leaves.items()}
        found = dict(zip(("out", "numerator", "denominator"), function(**leaves, key_mask=self.key_mask), strict=True))
        used = [found[name] for name in self.douts]
        grads = torch.autograd.grad(used, list(leaves.values()), list(self.douts.values()), allow_unused=True)
        grads = [torch.zeros_like(x) if dx is None else dx for x, dx in zip(leaves.values(), grads, strict=True)]
        for (name, x), dx in zip(leaves.items(), grads, strict=True):
            assert (dx.dtype, dx.shape, dx.device) == (x.dtype, x.shape, x.device), name
        return {name: x.detach() for name, x in found.items()} | {
            f"d{name}": dx for name, dx in zip(leaves, grads, strict=True)
        }

    def to(self, dtype: torch.dtype) -> "Problem":
        leaves, douts = ({name: x.to(dtype) for name, x in xs.items()} for xs in (self.leaves, self.douts))
        return Problem(leaves, douts, self.key_mask)

    def definition(self, dtype: torch.dtype) -> dict[str, Tensor]:
        def run(
            k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, key_mask: Tensor | None, **state: Tensor
        ) -> Results:
            if key_mask is None:
                key_mask = torch.ones(k.shape[:2], dtype=torch.bool, device=DEVICE)
            numerator = denominator = torch.zeros_like(k[:, 0])
            if state:
                scale = state["maximum"].exp()
                numerator, denominator = state["numerator"] * scale, state["denominator"] * scale
            return by_sums(k, v, decay, bonus, numerator, denominator, key_mask)

        return self.to(dtype).run(run)

    def assert_close(self, actual: dict[str, Tensor]) -> None:
        compute = torch.float64 if self.dtype == torch.float64 else torch.float32
        assert (actual["out"].dtype, actual["numerator"].dtype) == (self.dtype, compute)
        exact = self.definition(torch.float64)
        rounded = {name: y.to(actual[name].dtype) for name, y in self.definition(compute).items()}
        # Gradients of few tokens are mostly cancellation: what they are the sums of is of the size of v and of dout.
        floor = torch.stack([dout.double().norm() for dout in self.douts.values()]).norm().item()
        assert_close_in(self.dtype, actual, exact, rounded, floor=floor)


def call(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor,
    key_mask: Tensor | None = None,
    backend: str = "auto",
    **state: Tensor,
) -> Results:
    first = WKVState(**state) if state else None
    out, last = wkv(k, v, decay, bonus, key_mask=key_mask, state=first, return_state=True, backend=backend)
    return out, *undivided(last)


def undivided(state: Any) -> tuple[Tensor, Tensor]:
    assert not state.maximum.requires_grad
    scale = state.maximum.exp()
    return state.numerator * scale, state.denominator * scale


def make_problem(
    sizes: tuple[int, int, int],
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    layout: str = "contiguous",
    has_state: bool = True,
    masked: bool = False,
    outputs: tuple[str, ...] = ("out", "numerator", "denominator"),
    parameter_dtype: torch.dtype | None = None,
    device: str = DEVICE,
) -> Problem:
    B, T, M = sizes
    generator = torch.Generator().manual_seed(seed)
    compute = torch.float64 if dtype == torch.float64 else torch.float32

    def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    leaves = {
        "k": LAYOUTS[layout](2 * draw(B, T, M)),
        "v": LAYOUTS[layout](draw(B, T, M)),
        "decay": draw(M, dtype=torch.float64).exp().to(parameter_dtype or dtype),
        "bonus": draw(M, dtype=parameter_dtype or dtype),
    }
    if has_state:
        leaves |= {
            "numerator": draw(B, M, dtype=compute),
            "denominator": draw(B, M, dtype=compute).abs() + 0.1,
            "maximum": 2 * draw(B, M, dtype=compute),
        }
    douts = {"out": draw(B, T, M)} | {name: draw(B, M, dtype=compute) for name in ("numerator", "denominator")}
    key_mask = (torch.rand(B, T, generator=generator) < 0.6).to(device) if masked else None
    return Problem(leaves, {name: douts[name] for name in outputs}, key_mask)


@st.composite
def problems(draw: st.DrawFn, dtypes: list[torch.dtype], *, max_batch: int = 3, max_len: int = 40) -> Problem:
    dtype = draw(st.sampled_from(dtypes))
    lengths = st.integers(1, max_len) | st.sampled_from([1, 7, 8, 9, 16, 17])
    outputs = [("out", "numerator", "denominator"), ("out",), ("numerator",), ("denominator",)]
    return make_problem(
        (draw(st.integers(1, max_batch)), draw(lengths), draw(st.integers(1, 11))),
        dtype,
        seed=draw(st.integers(0, 2**32)),
        layout=draw(st.sampled_from(list(LAYOUTS))),
        has_state=draw(st.booleans()),
        masked=draw(st.booleans()),
        outputs=draw(st.sampled_from(outputs)),
        parameter_dtype=draw(st.sampled_from([dtype, *([] if dtype == torch.float64 else [torch.float32])])),
    )
