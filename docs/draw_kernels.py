"""Draws images/kernels.svg: similarity over the scalar product for exp, Based, and ReBased as a layer has learned it.

``python docs/draw_kernels.py`` draws from images/learned_affine.json, the same bytes every time;
``python docs/draw_kernels.py RUN`` first writes that file anew, from the folder of a finished recall run of ReBased::

    rebased mqar --stack rebased --d-model 48 --seq-len 64 --num-pairs 8 --vocab-size 256 --endless --num-train 4000 \
        --num-test 500 --epochs 32 --batch-size 64 --learning-rates 1e-2 --seeds 42 --device cpu --out runs/picture
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from rebased.paper.figure2 import similarity_curves
from rebased.paper.figures import COLOURS
from rebased.runs import read_run

IMAGES = Path(__file__).parent / "images"
LEARNED = IMAGES / "learned_affine.json"
INK = "#84898f"
"""Of text and axes: as readable on white as on black."""
LOW, HIGH = -4.0, 3.0
CURVATURE = 0.5
"""Of Based, 1 + s + s²/2. Common factors cancel in attention, so ReBased's parabolas are drawn with it too."""


def record(folder: Path) -> None:
    run = read_run(folder)
    weights = run.weights()

    def learned(name: str) -> list[float]:
        return [round(x, 4) for x in weights[f"blocks.1.mixer.{name}"].tolist()]

    LEARNED.write_text(
        json.dumps(
            {
                "config": {
                    name: run.config[name]
                    for name in ("stack", "d_model", "seq_len", "vocab_size", "task_options", "learning_rate", "seed")
                },
                "accuracy": run.result["accuracy"],
                "gamma_q": learned("gammas.0"),
                "gamma_k": learned("gammas.1"),
                "beta_q": learned("betas.0"),
                "beta_k": learned("betas.1"),
            }
        )
        + "\n"
    )


def zeros(learned: dict[str, Any]) -> np.ndarray:
    """Where each feature's parabola in the key, (γ_k·x + β_k)², is zero."""
    return -np.array(learned["beta_k"]) / np.array(learned["gamma_k"])


def draw(learned: dict[str, Any]) -> Figure:
    found = zeros(learned)
    low, middle, high = np.quantile(found, [0.1, 0.5, 0.9])
    slope = CURVATURE**0.5
    examples = [(slope, -slope * zero) for zero in (middle, low, high)]
    softmax, based, _, *parabolas = similarity_curves(low=LOW, high=HIGH, examples=examples)

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(softmax.x, softmax.y, color=INK, linewidth=2, label="exp: softmax attention")
    axes.plot(based.x, based.y, color=COLOURS["based"], linewidth=2, label="Based: 1 + s + s²/2")
    labels = [
        "ReBased, learned: zero of the median feature",
        "ReBased: at one and at nine tenths of the features",
        None,
    ]
    for curve, dashes, label in zip(parabolas, ("-", "--", "--"), labels, strict=True):
        axes.plot(curve.x, curve.y, dashes, color="#0f97a8", linewidth=2 if dashes == "-" else 1.3, label=label)
    inside = found[(found > LOW) & (found < HIGH)]
    axes.plot(inside, np.full(len(inside), -0.17), "|", color="#0f97a8", markersize=7, markeredgewidth=0.7)
    axes.plot([-1], [0.5], "o", color=COLOURS["based"], markersize=5)
    axes.annotate(
        "never below ½",
        (-1, 0.5),
        xytext=(-1.0, 1.5),
        color=COLOURS["based"],
        ha="center",
        arrowprops={"arrowstyle": "-", "color": COLOURS["based"], "shrinkB": 4},
    )
    axes.text(LOW + 0.05, -0.47, f"ticks: zeros of {len(inside)} of {len(found)} features", color=INK, fontsize=8)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlabel("scalar product qᵀk, in one dimension with q = 1", color=INK)
    axes.set_ylabel("similarity", color=INK)
    axes.set(xlim=(LOW, HIGH), ylim=(-0.6, 4.5))
    axes.tick_params(colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=INK, fontsize=9)
    return figure


def main() -> None:
    if len(sys.argv) > 1:
        record(Path(sys.argv[1]))
    with matplotlib.rc_context({"svg.hashsalt": "kernels", "svg.fonttype": "path"}):
        draw(json.loads(LEARNED.read_text())).savefig(
            IMAGES / "kernels.svg", transparent=True, metadata={"Date": None, "Creator": None}
        )


if __name__ == "__main__":
    main()
