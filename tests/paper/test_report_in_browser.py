"""A report as a browser shows it: nothing wider than the window, everything drawn, nothing to complain about."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from findings_by_hand import entries

from rebased.paper.report import render_paper_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCHEMES = {"dark": 0, "light": 1}
"""As the browser's setting has them."""
MEASURE = """
<script>
addEventListener("load", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const size = (element) => { const box = element.getBoundingClientRect(); return Math.min(box.width, box.height); };
  const card = document.querySelector(".drawing");
  parent.postMessage(JSON.stringify({
    window: innerWidth,
    page: document.documentElement.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    ground: getComputedStyle(document.body).backgroundColor,
    card: getComputedStyle(card).backgroundColor,
    drawings: [...document.querySelectorAll("svg")].map(size),
    images: [...document.querySelectorAll("img")].map((image) => image.naturalWidth),
    tables: [...document.querySelectorAll("table")].map(size),
    outside: [...document.querySelectorAll(".scroll, .drawing, p, h1, h2, dl, pre")]
      .filter((element) => element.getBoundingClientRect().right > innerWidth).length,
  }), "*");
});
</script>
"""

FRAME = """<!doctype html>
<meta name="color-scheme" content="light dark">
<pre id="measured"></pre>
<script>onmessage = (event) => document.getElementById("measured").append(event.data);</script>
<iframe src="{page}" style="border: 0; width: {width}px; height: 900px"></iframe>
"""
"""A window may not be as narrow as a telephone, but a frame may."""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a script that measures it."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_paper_report(entries()).replace("</main>", f"</main>{MEASURE}"))
    return path


def open_page(page: Path, folder: Path, *, width: int, scheme: str) -> tuple[dict[str, Any], list[str]]:
    """What was measured, and what the console says."""
    frame = folder / f"{scheme}.html"
    frame.write_text(FRAME.format(page=page.as_uri(), width=width))
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",  # it cannot be had as root, and the page is ours
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1700,1000",
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        "--enable-logging=stderr",
        "--virtual-time-budget=10000",
        "--dump-dom",
        frame.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="measured">(.+?)</pre>', done.stdout)
    assert found, done.stderr
    return json.loads(found[1]), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", [400, 1600])
def test_report_in_browser(report: Path, tmp_path: Path, width: int, scheme: str) -> None:
    measured, console = open_page(report, tmp_path, width=width, scheme=scheme)
    assert console == []
    assert measured["window"] == width
    assert measured["page"] <= width
    assert measured["outside"] == 0
    assert measured["dark"] is (scheme == "dark")
    assert len(measured["drawings"]) == report.read_text().count("<svg")
    assert min(measured["drawings"]) > 100
    assert all(size > 0 for size in [*measured["images"], *measured["tables"]])


def test_drawings_stay_readable_in_the_dark(report: Path, tmp_path: Path) -> None:
    """Their letters are black, so what is behind them must be white."""
    grounds = set()
    for scheme in SCHEMES:
        measured, _ = open_page(report, tmp_path, width=1600, scheme=scheme)
        assert measured["card"] == "rgb(255, 255, 255)"
        grounds.add(measured["ground"])
    assert len(grounds) == 2


def test_console_is_heard(report: Path, tmp_path: Path) -> None:
    """A page that complains is noticed."""
    page = tmp_path / "bad.html"
    page.write_text(report.read_text().replace("</main>", "</main><script>undefinedName()</script>"))
    _, console = open_page(page, tmp_path, width=400, scheme="light")
    assert len(console) == 1
    assert "undefinedName" in console[0]
