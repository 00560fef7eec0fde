"""The picture of a bench shows every number that was measured."""

import sys
from pathlib import Path

import pytest

from bench.results_by_hand import small_result
from rebased.bench.plot import _short, draw, save


def lines(axes: object) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}  # type: ignore[attr-defined]


def test_a_panel_for_each_choice_of_passes() -> None:
    figure = draw(small_result(passes=("forward", "both")))
    assert [axes.get_title() for axes in figure.axes] == ["forward", "forward + backward"]
    for axes, factor in zip(figure.axes, (1, 2), strict=True):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        drawn = lines(axes)
        assert drawn["rebased, chunked"] == pytest.approx([5 * factor, 12.5 * factor])
        assert drawn["softmax attention (SDPA)"][0] == pytest.approx(10 * factor)
        assert drawn["softmax attention (SDPA)"][1] != drawn["softmax attention (SDPA)"][1]  # was skipped
        assert len(drawn["limit of the linear form"]) == 2
        assert [label.get_text() for label in axes.get_xticklabels()] == ["512", "1k"]
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 3


def test_without_limits() -> None:
    (axes,) = draw(small_result(rates=None, limits=())).axes
    assert set(lines(axes)) == {"rebased, chunked", "softmax attention (SDPA)"}


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_saved_files_are_reproducible(suffix: str, tmp_path: Path) -> None:
    paths = [tmp_path / folder / f"ops.{suffix}" for folder in ("a", "b")]
    for path in paths:
        save(draw(small_result()), path)
    first, second = (path.read_bytes() for path in paths)
    assert len(first) > 1000
    assert first == second


@pytest.mark.parametrize(("length", "text"), [(512, "512"), (1024, "1k"), (65536, "64k"), (1500, "1500")])
def test_short_lengths(length: int, text: str) -> None:
    assert _short(length) == text


def test_drawing_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw(small_result())
