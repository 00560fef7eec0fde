"""Problems for the selective scan, and the oracle they are held to."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from rebased.ops.triton import selective_scan as triton_scan
from scan_cases import DEVICE, LAYOUTS
from tolerances import assert_close_in

module = importlib.import_module("rebased.ops.selective_scan")  # not the function of that name
selective_scan, selective_scan_step = module.selective_scan, module.selective_scan_step
scan = partial(selective_scan, return_state=True)

SHAPES = [(2, 9, 3), (2, 9, 3), (3, 4), (2, 9, 4), (2, 9, 4), (2, 3, 4)]
"""Of x, dt, A, b, c and the state."""


def use_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks, and pieces of the batch and of groups, also for a few tokens; in Triton several steps a chunk."""
    monkeypatch.setattr(module, "CHUNK", 8)
    monkeypatch.setattr(module, "PIECE_NUMBERS", 200)
    monkeypatch.setattr(triton_scan, "THREAD_STATES", 8)


# ---- The oracle ----


def by_steps(x: Tensor, dt: Tensor, A: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, one token after another; all inputs have one dtype."""
    h, ys = state, []
    for t in range(x.shape[1]):
        h = torch.exp(dt[:, t, :, None] * A) * h + (dt[:, t] * x[:, t])[:, :, None] * b[:, t, None, :]
        ys.append((h * c[:, t, None, :]).sum(dim=-1))
    return torch.stack(ys, dim=1) if ys else x, h


@dataclass(frozen=True)
class Problem:
    leaves: dict[str, Tensor]
    """x, dt, A, b, c and perhaps state."""
    dy: Tensor | None
    dlast: Tensor | None

    @property
    def dtype(self) -> torch.dtype:
        return self.leaves["x"].dtype

    def run(self, function: Callable[..., tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
        """y, the last state and the gradient of each leaf."""
        leaves = {name: x.detach().requires_grad_() for name, x in self.leaves.items()}
        y, last = function(**leaves)
        outs, douts = zip(*[pair for pair in ((y, self.dy), (last, self.dlast)) if pair[1] is not None], strict=True)
        # A loss that does not use y has no gradient for c; that of the operator is zero.
        grads = torch.autograd.grad(outs, list(leaves.values()), douts, allow_unused=True)
        grads = [torch.zeros_like(x) if dx is None else dx for x, dx in zip(leaves.values(), grads, strict=True)]
        for (name, x), dx in zip(leaves.items(), grads, strict=True):
            assert (dx.dtype, dx.shape, dx.device) == (x.dtype, x.shape, x.device), name
        return {"y": y.detach(), "last": last.detach()} | {
            f"d{name}": dx for name, dx in zip(leaves, grads, strict=True)
        }

    def to(self, dtype: torch.dtype) -> "Problem":
        leaves = {name: x.to(dtype) for name, x in self.leaves.items()}
        return Problem(leaves, *(None if dout is None else dout.to(dtype) for dout in (self.dy, self.dlast)))

    def definition(self, dtype: torch.dtype) -> dict[str, Tensor]:
        def run(state: Tensor | None = None, **inputs: Tensor) -> tuple[Tensor, Tensor]:
            if state is None:
                state = torch.zeros(inputs["x"].shape[0], *inputs["A"].shape, dtype=dtype, device=DEVICE)
            return by_steps(**inputs, state=state)

        return self.to(dtype).run(run)

    def assert_close(self, actual: dict[str, Tensor]) -> None:
        x = self.leaves["x"]
        compute = torch.float64 if x.dtype == torch.float64 else torch.float32
        assert (actual["y"].dtype, actual["last"].dtype) == (x.dtype, compute)
        rounded = {name: y.to(actual[name].dtype) for name, y in self.definition(compute).items()}
        assert_close_in(self.dtype, actual, self.definition(torch.float64), rounded)


def make_problem(
    sizes: tuple[int, int, int, int],
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    layout: str = "contiguous",
    has_state: bool = True,
    outputs: tuple[str, ...] = ("y", "last"),
    other_dtype: torch.dtype | None = None,
    device: str = DEVICE,
) -> Problem:
    """``other_dtype``: of dt and A."""
    B, T, M, N = sizes
    generator = torch.Generator().manual_seed(seed)
    compute = torch.float64 if dtype == torch.float64 else torch.float32

    def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    leaves = {
        "x": LAYOUTS[layout](draw(B, T, M)),
        "dt": LAYOUTS[layout](draw(B, T, M, dtype=torch.float64).abs().to(other_dtype or dtype)),
        "A": -draw(M, N, dtype=torch.float64).abs().to(other_dtype or dtype),
        "b": LAYOUTS[layout](draw(B, T, N)),
        "c": LAYOUTS[layout](draw(B, T, N)),
    }
    if has_state:
        leaves["state"] = draw(B, M, N, dtype=compute)
    dy, dlast = draw(B, T, M), draw(B, M, N, dtype=compute)
    return Problem(leaves, dy if "y" in outputs else None, dlast if "last" in outputs else None)


@st.composite
def problems(draw: st.DrawFn, dtypes: list[torch.dtype], *, max_batch: int = 3, max_len: int = 40) -> Problem:
    dtype = draw(st.sampled_from(dtypes))
    lengths = st.integers(1, max_len) | st.sampled_from([1, 7, 8, 9, 16, 17])
    return make_problem(
        (draw(st.integers(1, max_batch)), draw(lengths), draw(st.integers(1, 11)), draw(st.integers(1, 6))),
        dtype,
        seed=draw(st.integers(0, 2**32)),
        layout=draw(st.sampled_from(list(LAYOUTS))),
        has_state=draw(st.booleans()),
        outputs=draw(st.sampled_from([("y", "last"), ("y",), ("last",)])),
        other_dtype=draw(st.sampled_from([dtype, *([] if dtype == torch.float64 else [torch.float32])])),
    )
