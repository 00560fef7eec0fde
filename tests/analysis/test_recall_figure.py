"""The picture of recall runs: its lines are the runs' numbers."""

import sys
from pathlib import Path

import pytest
from recall_runs import make_row

from rebased.analysis.recall_figure import draw, mean_curve, save


def test_a_run_that_ended_keeps_its_accuracy_in_the_mean(tmp_path: Path) -> None:
    row = make_row(tmp_path, "ReBased", [0.2, 1.0], [0.1, 0.2, 0.3, 0.5])
    assert mean_curve(row.runs) == pytest.approx([0.15, 0.6, 0.65, 0.75])


def test_lines(tmp_path: Path) -> None:
    rows = [make_row(tmp_path, "Based", [0.5, 0.7]), make_row(tmp_path, "x²", [0.2, 1.0], [0.1, 0.2, 0.3])]
    figure = draw(rows)
    (axes,) = figure.axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]
    assert lines[:2] == [([1, 2], [0.5, 0.7])] * 2  # one seed, and its mean
    assert lines[2:4] == [([1, 2], [0.2, 1.0]), ([1, 2, 3], [0.1, 0.2, 0.3])]
    assert lines[4][1] == pytest.approx([0.15, 0.6, 0.65])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Based", "x²"]


def test_saved_file_is_an_image_and_reproducible(tmp_path: Path) -> None:
    row = make_row(tmp_path, "ReBased", [0.2, 1.0])
    for name in ("a", "b"):
        save(draw([row]), tmp_path / name / "recall.png")
    written = (tmp_path / "a" / "recall.png").read_bytes()
    assert written.startswith(b"\x89PNG")
    assert written == (tmp_path / "b" / "recall.png").read_bytes()


def test_drawing_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw([make_row(tmp_path, "ReBased", [0.5])])
