"""Figure 2's numbers, worked by hand, and that it is drawn."""

import math
import sys
from pathlib import Path

import pytest
import torch

from rebased.analysis.pages import Picture
from rebased.paper.experiment import Material
from rebased.paper.figure2 import EXAMPLES, FIGURE2, draw, similarity_curves
from rebased.paper.figure10 import PARAMETERS
from rebased.paper.figures import save
from rebased.runs import Run


def test_values_by_hand() -> None:
    exp, based, untrained, near_exp, lowered = similarity_curves(low=-2, high=2, num_points=5)
    assert exp.x.tolist() == [-2, -1, 0, 1, 2]
    assert exp.y.tolist() == pytest.approx([math.exp(-2), math.exp(-1), 1, math.e, math.exp(2)])
    assert based.y.tolist() == pytest.approx([1, 0.5, 1, 2.5, 5])  # 1 + x + x²/2
    assert untrained.y.tolist() == pytest.approx([4, 1, 0, 1, 4])  # x²
    assert near_exp.y.tolist() == pytest.approx([0, 0.25, 1, 2.25, 4])  # (1 + x/2)²
    assert lowered.y.tolist() == pytest.approx([0.5, 0, 0.5, 2, 4.5])  # Based less a half


def test_the_point_of_the_figure() -> None:
    """Based never falls below 0.5; every ReBased parabola reaches zero."""
    curves = similarity_curves(num_points=6001)
    lowest = {curve.label: float(curve.y.min()) for curve in curves if curve.kernel != "exp"}
    assert lowest.pop("Based") == pytest.approx(0.5)
    assert len(lowest) == 1 + len(EXAMPLES)
    assert max(lowest.values()) < 1e-6


def test_examples_are_labelled_as_such() -> None:
    *_, example = similarity_curves(examples=[(2.0, -1.0)])
    assert example.label == "ReBased, example: (2x − 1)²"
    assert example.kernel == "rebased"
    torch.testing.assert_close(example.y, (2 * example.x - 1).square())


def test_what_training_has_learned() -> None:
    """(γ_q + β_q)(γ_k·x + β_k) = (0.5 + 0.5)(2x − 1), squared, of the most accurate run that did not diverge.

    Over 4, its curvature is that of x²; a standard deviation of β, 0.1, moves its root by a twentieth.
    """
    watched = {name: [mean, 0.1] for name, mean in zip(PARAMETERS, (0.5, 2.0, 0.5, -1.0), strict=True)}
    config = {"seq_len": 16, "d_model": 8, "learning_rate": 0.01}
    ends = [(0.9, "diverged"), (0.5, "epochs"), (0.8, "epochs")]
    runs = tuple(
        Run(Path(f"{accuracy}"), config, ({"watched": watched},), {"accuracy": accuracy, "epochs": 3, "finished": end})
        for accuracy, end in ends
    )
    data = FIGURE2.measure(Material(scale="smoke", runs=runs, out=Path("nowhere"), device="cpu"))
    assert data["learned"]["accuracy"] == 0.8
    assert data["learned"]["gamma"] == [[0.5, 0.1], [2.0, 0.1]]
    assert data["learned"]["beta"] == [[0.5, 0.1], [-1.0, 0.1]]
    picture = FIGURE2.present(data).parts[-1]
    assert isinstance(picture, Picture)
    lines = [line for line in picture.figure.axes[0].lines if "learned" in str(line.get_label())]
    assert [line.get_label() for line in lines] == [f"ReBased, learned: (x − {root})²" for root in (0.5, 0.55, 0.45)]
    for line, root in zip(lines, (0.5, 0.55, 0.45), strict=True):
        assert line.get_ydata() == pytest.approx((line.get_xdata() - root) ** 2)


@pytest.mark.parametrize(
    ("options", "message"), [({"low": 1.0, "high": 1.0}, "low=1.0"), ({"num_points": 1}, "num_points=1")]
)
def test_bad_input(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        similarity_curves(**options)  # type: ignore[arg-type]


def test_saved_files_are_images_and_reproducible(tmp_path: Path) -> None:
    curves = similarity_curves(num_points=21)
    png, svg = save(draw(curves), tmp_path / "a", "figure2")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()
    again = save(draw(curves), tmp_path / "b", "figure2")
    assert [path.read_bytes() for path in again] == [png.read_bytes(), svg.read_bytes()]


def test_drawing_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw(similarity_curves(num_points=3))
