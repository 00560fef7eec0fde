"""Figure 2: the similarity of a query and a key over their scalar product, for exp, Based and ReBased."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rebased.analysis.learned_kernel import learned_kernel
from rebased.analysis.pages import Picture, Section, Table
from rebased.kernels import BASED, REBASED
from rebased.paper.by_length import grids
from rebased.paper.experiment import Data, Experiment, Material
from rebased.paper.figure10 import PARAMETERS
from rebased.paper.figures import new_figure, tidy
from rebased.paper.watched import watched_moments
from rebased.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXAMPLES", "FIGURE2", "Curve", "draw", "similarity_curves"]

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
    *,
    low: float = -4.0,
    high: float = 2.0,
    num_points: int = 601,
    examples: Sequence[tuple[float, float]] = EXAMPLES,
    example: str = "example",
) -> tuple[Curve, ...]:
    """exp, Based, ReBased as it starts (γ = 1, β = 0), then ReBased with each (γ, β) of ``examples``, so called.

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
        Curve(kernel="rebased", label="ReBased, untrained: x²", x=x, y=rebased(1.0, 0.0)),
        *(
            Curve(
                kernel="rebased",
                label=f"ReBased, {example}: ({_factor(gamma)}x {'+' if beta >= 0 else '−'} {abs(beta):.2g})²",
                x=x,
                y=rebased(gamma, beta),
            )
            for gamma, beta in examples
        ),
    )


def _factor(gamma: float) -> str:
    return "" if gamma == 1 else f"{gamma:.2g}"


_COLOURS = {"exp": "#3b3b3b", "based": "#d1495b", "rebased": "#00798c"}
_DASHES = ("-", "--", ":", "-.")
Moments = Sequence[float]
"""Mean and standard deviation."""


def draw(curves: Sequence[Curve]) -> "Figure":
    """The figure, not yet saved; colour tells the kernel, dashes tell γ and β. Needs matplotlib."""
    figure, (axes,) = new_figure(1, "similarity of q and k", width=6.4, height=4.2)
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
                xytext=(at - 2.1, least + 0.4),  # under Based's own curve, where no other is
                fontsize="small",
                color=_COLOURS["based"],
                ha="center",
                arrowprops={"arrowstyle": "-", "color": _COLOURS["based"], "shrinkB": 4},
            )
    axes.axhline(0, color="#3b3b3b", linewidth=0.8, zorder=0)
    axes.set(xlabel="scalar product qᵀk", ylim=(-0.15, 5.0))
    axes.set_xlim(min(float(curve.x[0]) for curve in curves), max(float(curve.x[-1]) for curve in curves))
    tidy(figure, [axes], columns=2)
    return figure


# ---- With what training has learned ----


def measure(material: Material) -> Data:
    sound = [run for run in material.runs if run.result["finished"] != "diverged"]
    best = max(sound, key=lambda run: float(run.result["accuracy"]), default=None)
    return {"learned": None if best is None else _learned(best)}


def _learned(run: Run) -> Data:
    """Means and standard deviations over features, of a layer's last epoch: of queries, and of keys."""
    watched = watched_moments(run)
    gamma_q, gamma_k, beta_q, beta_k = (watched[name][-1] for name in PARAMETERS)
    return {
        "seq_len": run.config["seq_len"],
        "d_model": run.config["d_model"],
        "learning_rate": run.config["learning_rate"],
        "accuracy": run.result["accuracy"],
        "epochs": run.result["epochs"],
        "gamma": [gamma_q, gamma_k],
        "beta": [beta_q, beta_k],
    }


def present(data: Data) -> Section:
    learned = data["learned"]
    if learned is None:
        return Section(_TITLE, (Picture("figure2", draw(similarity_curves()), _CAPTION),))
    gammas, betas = learned["gamma"], learned["beta"]
    parts: list[Any] = [
        "One dimension, as in the paper's section 4: q = 1, so that k is the scalar product. The learned parabola is "
        f"that of γ and β averaged over a trained layer's features ({learned['seq_len']} tokens, d = "
        f"{learned['d_model']}, accuracy {learned['accuracy']:.2f} after {learned['epochs']} epochs), and that of keys "
        "whose β is a standard deviation less or more. Attention is normalised, so that a factor of all similarities "
        "cancels: learned parabolas are drawn with the curvature of x². They are pictures: in 16 dimensions similarity "
        "is no function of the scalar product alone.",
        Table.of(
            "mean ± standard deviation over features",
            ("", "γ", "β"),
            [
                [side, f"{gamma[0]:.3f} ± {gamma[1]:.3f}", f"{beta[0]:+.4f} ± {beta[1]:.4f}"]
                for side, gamma, beta in zip(("queries", "keys"), gammas, betas, strict=True)
            ],
        ),
        Picture("figure2", draw(similarity_curves(examples=_parabolas(gammas, betas), example="learned")), _CAPTION),
    ]
    return Section(_TITLE, tuple(parts))


def _parabolas(gammas: Sequence[Moments], betas: Sequence[Moments]) -> list[tuple[float, float]]:
    """(γ, β) of the mean parabola, and of those with a standard deviation less and more of keys' β."""
    (gamma_q, gamma_k), (beta_q, beta_k) = gammas, betas
    found = [
        learned_kernel(*(np.array([x]) for x in (gamma_q[0], beta_q[0], gamma_k[0], beta_k[0] + shift * beta_k[1])))
        for shift in (0, -1, 1)
    ]
    return [(1.0, kernel.shift / kernel.slope) if kernel.slope else (0.0, kernel.shift) for kernel in found]


_TITLE = "Figure 2: similarity over the scalar product"
_CAPTION = "Figure 2: exp, Based and ReBased; Based never falls below 0.5, a parabola of ReBased touches zero somewhere"


FIGURE2 = Experiment(
    name="figure2",
    title="Similarity over the scalar product",
    grids=grids(["rebased"], only_largest=True),
    measure=measure,
    present=present,
    needs="watched",
)
