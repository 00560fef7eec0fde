"""The documentation as a site: it builds without a warning, needs no other host, and has every public name."""

import importlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import rebased

ROOT = Path(__file__).parents[1]
ROOMS = ("kernels", "ops", "layers", "models", "tasks", "hf", "corpora", "runs")
"""Those whose public names are in ``__all__``."""

needs_mkdocs = pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None, reason="needs pip install '.[docs]'"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ROOT / "mkdocs.yml"]
    result = subprocess.run(
        [*command, "--site-dir", folder],
        capture_output=True,
        text=True,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return folder


def headings(page: Path) -> set[str]:
    """Names that a page of the API documents."""
    return {name.rpartition(".")[2] for name in re.findall(r'<h\d id="(rebased[\w.]+)"', page.read_text())}


@needs_mkdocs
@pytest.mark.parametrize("room", ROOMS)
def test_pages_have_the_public_names(site: Path, room: str) -> None:
    public = importlib.import_module(f"rebased.{room}").__all__
    assert set(public) - headings(site / "api" / f"{room}.html") == set()


@needs_mkdocs
def test_the_package_s_own_names_are_on_the_first_page(site: Path) -> None:
    text = (site / "api" / "index.html").read_text()
    assert [name for name in rebased.__all__ if f"<code>{name}</code>" not in text] == []


@needs_mkdocs
@pytest.mark.parametrize(
    ("room", "names"),
    [
        ("training", {"RecallConfig", "expand_grid", "run_sweep", "Replicas", "LanguageRunConfig"}),
        ("analysis", {"compare_kernels", "sign_flip_test", "mean_interval", "attention_map", "evaluate"}),
    ],
)
def test_pages_of_modules_have_what_guides_use(site: Path, room: str, names: set[str]) -> None:
    assert names - headings(site / "api" / f"{room}.html") == set()


@needs_mkdocs
def test_pages_ask_no_other_host(site: Path) -> None:
    """Links may lead elsewhere; what a page is made of may not."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        parts = re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=\"?([^\s\">]+)", page.read_text())
        assert [part for part in parts if re.match(r"(https?:)?//", part)] == [], page


@needs_mkdocs
def test_every_page_of_the_docs_is_there(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()
    assert (site / "index.html").is_file()


def test_the_picture_shows_what_is_said_of_it() -> None:
    learned = json.loads((ROOT / "docs" / "images" / "learned_affine.json").read_text())
    low, middle, high = np.quantile(-np.array(learned["beta_k"]) / np.array(learned["gamma_k"]), [0.1, 0.5, 0.9])
    text = " ".join((ROOT / "docs" / "rebased.md").read_text().split())
    assert f"a tenth of them below {low:.1f} and a tenth above {high:.1f}" in text
    assert abs(middle) < 0.1
    assert f"(accuracy {learned['accuracy']:.2f})" in text
    config = learned["config"]
    assert f"recall {config['task_options']['num_pairs']} pairs from {config['seq_len']} tokens" in text


def test_the_picture_is_drawn_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    images = tmp_path / "docs" / "images"
    images.mkdir(parents=True)
    script = images.parent / "draw_kernels.py"
    script.write_text((ROOT / "docs" / "draw_kernels.py").read_text())
    (images / "learned_affine.json").write_text((ROOT / "docs" / "images" / "learned_affine.json").read_text())
    subprocess.run([sys.executable, script], check=True)
    assert (images / "kernels.svg").read_text() == (ROOT / "docs" / "images" / "kernels.svg").read_text()
