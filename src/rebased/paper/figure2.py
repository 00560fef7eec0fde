"""Figure 2: the similarity of a query and a key over their scalar product, for exp, Based and ReBased."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rebased.kernels import BASED, REBASED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXAMPLES", "Curve", "draw", "save", "similarity_curves"]

EXAMPLES = ((0.5, 1.0), (0.5**0.5, 0.5**0.5))
"""(γ, β) of example ReBased parabolas: (1 + x/2)², near exp like Based, and Based's own, lowered to touch zero."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line of the figure. Compares by identity, as its tensors do."""

    kernel: str
    """"exp", "based" or "rebased"."""
    label: str
    """What the legend says."""
    x: Float[Tensor, "points"]
    """Scalar products qᵀk."""
    y: Float[Tensor, "points"]
    """Similarities."""


def similarity_curves(
    *, low: float = -4.0, high: float = 2.0, num_points: int = 601, examples: Sequence[tuple[float, float]] = EXAMPLES
) -> tuple[Curve, ...]:
    """exp, Based, ReBased as it starts (γ = 1, β = 0), then ReBased with each (γ, β) of ``examples``.

    One-dimensional, as in the paper's section 4: q = 1, so k is the scalar product, and ReBased's affine map acts on k
    alone, giving ``(γx + β)²``. Similarities are the kernels' own, with scale 1, in float64.
    """
    if not low < high:
        raise ValueError(f"low={low} must be less than high={high}")
    if num_points < 2:
        raise ValueError(f"num_points={num_points} must be at least 2")
    x = torch.linspace(low, high, num_points, dtype=torch.float64)
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)  # (B, T, H, F)

    def rebased(gamma: float, beta: float) -> Tensor:
        return REBASED.similarity(q, (gamma * x + beta).reshape(1, -1, 1, 1), scale=1.0).flatten()

    based = BASED.similarity(q, x.reshape(1, -1, 1, 1), scale=1.0).flatten()
    return (
        Curve(kernel="exp", label="exp (softmax attention)", x=x, y=x.exp()),
        Curve(kernel="based", label="Based", x=x, y=based),
        Curve(kernel="rebased", label="ReBased, untrained: γ = 1, β = 0", x=x, y=rebased(1.0, 0.0)),
        *(
            Curve(
                kernel="rebased",
                label=f"ReBased, example: γ = {gamma:.2g}, β = {beta:.2g}",
                x=x,
                y=rebased(gamma, beta),
            )
            for gamma, beta in examples
        ),
    )


_COLOURS = {"exp": "#3b3b3b", "based": "#d1495b", "rebased": "#00798c"}
_DASHES = ("-", "--", ":", "-.")


def draw(curves: Sequence[Curve]) -> "Figure":
    """The figure, not yet saved; colour tells the kernel, dashes tell γ and β. Needs matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawing needs matplotlib: pip install 'rebased[figures]'") from error

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    drawn = dict.fromkeys(_COLOURS, 0)
    for curve in curves:
        dashes = _DASHES[drawn[curve.kernel] % len(_DASHES)]
        drawn[curve.kernel] += 1
        axes.plot(curve.x, curve.y, dashes, color=_COLOURS[curve.kernel], label=curve.label, linewidth=2)
        if curve.kernel == "based":
            lowest = int(curve.y.argmin())
            at, least = float(curve.x[lowest]), float(curve.y[lowest])
            axes.plot([at], [least], "o", color=_COLOURS["based"])
            axes.annotate(
                f"Based never\nfalls below {least:.2g}",
                (at, least),
                xytext=(at - 1.1, least + 1.7),
                fontsize="small",
                color=_COLOURS["based"],
                ha="center",
                arrowprops={"arrowstyle": "-", "color": _COLOURS["based"], "shrinkB": 4},
            )
    axes.axhline(0, color="#3b3b3b", linewidth=0.8, zorder=0)
    axes.set(xlabel="scalar product qᵀk", ylabel="similarity of q and k", ylim=(-0.15, 5.0))
    axes.set_xlim(min(float(curve.x[0]) for curve in curves), max(float(curve.x[-1]) for curve in curves))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return figure


def save(figure: "Figure", folder: Path, name: str = "figure2") -> tuple[Path, Path]:
    """Write ``name``.png and ``name``.svg into ``folder``, made if absent; the same figure gives the same bytes."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    figure.savefig(png, dpi=200)
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(svg, metadata={"Date": None})
    return png, svg
