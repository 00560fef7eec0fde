"""Two more formulations of kernel attention, independent of the backends, and a way to run any with gradients.

`by_hand` is the formula in plain Python loops over numbers. `by_cumulative_sums` is the recurrent form with every
prefix's state written out: with the reference it tells how much of a difference is mere rounding.
"""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rebased.kernels import Kernel
from rebased.ops import KernelState


def by_hand(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    similarity: Callable[[np.ndarray, np.ndarray], float],
    *,
    eps: float = 1e-12,
    visible: Callable[[int, int, int], bool] = lambda b, i, j: j <= i,
) -> np.ndarray:
    """(B, T, H, F), (B, T, H, F), (B, T, H, D) -> (B, T, H, D), one multiplication at a time."""
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, i, h in np.ndindex(*q.shape[:3]):
        weights = [similarity(q[b, i, h], k[b, j, h]) if visible(b, i, j) else 0.0 for j in range(k.shape[1])]
        for d in range(v.shape[-1]):
            out[b, i, h, d] = sum(w * v[b, j, h, d] for j, w in enumerate(weights)) / (sum(weights) + eps)
    return out


def by_cumulative_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
    causal: bool = True,
    key_mask: Tensor | None = None,
    state: KernelState | None = None,
    cu_seqlens: Tensor | None = None,
    at: Tensor | None = None,
) -> tuple[Tensor, KernelState]:
    """The recurrence, sequence by sequence: states of all prefixes, then one product per query."""
    B, T = k.shape[:2]
    borders = [(b, 0, T) for b in range(B)]
    if cu_seqlens is not None:
        borders = [(0, int(a), int(e)) for a, e in itertools.pairwise(cu_seqlens)]
    scale, eps = kernel.resolve(q.shape[-1], scale, eps, normalize=normalize)
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=v.dtype)
    finals = []
    for n, (b, start, end) in enumerate(borders):
        real = torch.ones(end - start, dtype=torch.bool) if key_mask is None else key_mask[b, start:end]
        count = 0 if state is None else int(state.count[n])
        positions = count + torch.cumsum(real, 0) - real.long()
        k_features = kernel.key_features(k[b, start:end], positions) * real[:, None, None]  # (S, Hk, E)
        ones = torch.ones(*v[b, start:end].shape[:2], 1, dtype=v.dtype)
        terms = k_features[..., None] * torch.cat([v[b, start:end], ones], dim=-1)[..., None, :]  # (S, Hk, E, D + 1)
        first = torch.zeros_like(terms.sum(0))
        if state is not None:
            first = torch.cat([state.values[n], state.normalizer[n][..., None]], dim=-1)
        sums = first + terms.cumsum(0)
        final = first + terms.sum(0)
        finals.append((final, count + int(real.sum())))
        places = torch.arange(start, end)
        rows = places
        if at is not None:
            rows = torch.nonzero((at[b] >= start) & (at[b] < end))[:, 0]
            places = at[b, rows]
        if rows.numel() == 0:
            continue
        prefixes = sums[places - start] if causal else final.expand(len(rows), *final.shape)
        prefixes = prefixes.repeat_interleave(q.shape[2] // k.shape[2], dim=1)
        q_features = kernel.query_features(q[b, rows], positions[places - start], scale=scale)
        numerators = (q_features[..., None] * prefixes).sum(-2)
        y = numerators[..., :-1]
        if normalize:
            normalizer = numerators[..., -1:]
            if kernel.nonnegative:
                normalizer = normalizer.clamp(min=0)
            y = y / (normalizer + eps)
        out = out.index_put((torch.tensor(b), rows), y)
    values = torch.stack([f[..., :-1] for f, _ in finals])
    normalizers = torch.stack([f[..., -1] for f, _ in finals])
    return out, KernelState(values, normalizers, torch.tensor([c for _, c in finals]), kernel=kernel.name)


def with_gradients(
    run: Callable[..., Tensor | tuple[Tensor, KernelState]], leaves: dict[str, Tensor], *, seed: int = 0
) -> dict[str, Tensor]:
    """Output, final state if there is one, and every leaf's gradient of one fixed random functional of them."""
    found = run()
    outputs = {"out": found}
    if isinstance(found, tuple):
        out, state = found
        outputs = {"out": out, "state.values": state.values, "state.normalizer": state.normalizer}
    generator = torch.Generator().manual_seed(seed)
    loss = torch.zeros((), dtype=torch.float64, requires_grad=True)  # no tokens at all leave no graph of their own
    for result in outputs.values():
        weights = torch.randn(result.shape, generator=generator, dtype=torch.float64) / max(result.numel(), 1) ** 0.5
        loss = loss + (result.double() * weights.to(result.device)).sum().cpu()
    names = [name for name, leaf in leaves.items() if leaf.requires_grad]
    grads = torch.autograd.grad(loss, [leaves[name] for name in names], allow_unused=True)
    results = {name: x.detach() for name, x in outputs.items()}
    for name, grad in zip(names, grads, strict=True):
        results[f"d{name}"] = torch.zeros_like(leaves[name]) if grad is None else grad
    return results
