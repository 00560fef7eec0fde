"""The page of all experiments: what it says of findings that are complete, partial or missing."""

import dataclasses
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from findings_by_hand import COMMIT, ablation_findings, almost_the_counts, entries, findings_of

from page_checker import PageChecker
from rebased.analysis.pages import Section
from rebased.paper.counts import TABLE4
from rebased.paper.experiment import SCALES, Experiment
from rebased.paper.figure1 import FIGURE1
from rebased.paper.figure4 import FIGURE4
from rebased.paper.figure7 import FIGURE7
from rebased.paper.report import ExperimentFindings, render_paper_report
from rebased.paper.table1 import TABLE1
from rebased.training.folders import name_of


@pytest.fixture(scope="module")
def html() -> str:
    return render_paper_report(entries())


def words(*given: ExperimentFindings, **options: Any) -> str:
    return PageChecker(render_paper_report(given, **options)).words


def line_of(html: str, name: str) -> list[str]:
    """What the first table says of an experiment."""
    found = re.search(rf'<tr><th scope="row"><a href="#{name}">.*?</tr>', html)
    assert found
    return re.findall(r"<(?:th|td).*?>([^<>]*)(?:</a>)?</(?:th|td)>", found[0])


def test_needs_no_other_file(html: str) -> None:
    PageChecker(html).assert_needs_no_other_file()
    assert not re.search(r"https?://|url\((?!#)|@import|<script", html)


def test_headings_are_in_order(html: str) -> None:
    headings = PageChecker(html).headings
    assert headings[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(headings))
    assert headings.count(1) == 1


def test_same_findings_give_the_same_page(html: str) -> None:
    assert render_paper_report(entries()) == html


def test_begins_with_what_there_is(html: str) -> None:
    assert line_of(html, "table1") == [f"Table 1: {TABLE1.title}", "partial", "228 of 272", "34.5", "small", "table1"]
    assert line_of(html, "figure4") == [
        f"Figure 4: {FIGURE4.title}",
        "complete",
        "272 of 272",
        "34.5",
        "small",
        "figure4",
    ]
    assert line_of(html, "table4") == [f"Table 4: {TABLE4.title}", "shown", "none", "", "small", "table4"]
    assert line_of(html, "table9")[1:] == ["missing", "", "", "", "table9"]


def test_begins_with_what_agrees_and_what_does_not(html: str) -> None:
    """Also where it is only in the section's claims; what was not run is folded."""
    said = PageChecker(html).words
    top = said[: said.index("How to read this")]
    for experiment, findings in entries():
        if findings is not None:
            for claim in experiment.present(dict(findings.data)).claims:
                assert claim.theirs in top
                assert claim.ours in top
    assert re.search(r"\d+ claims: (agrees|in part) \d+, ", top)
    assert top.index("Not run: ") < top.index("What the words mean") < top.index("What there is")


def test_smoke_says_nothing_of_claims() -> None:
    smoke = dataclasses.replace(ablation_findings(FIGURE4), scale="smoke")
    claim = "ReBased works best across all hyperparameters"
    counted = findings_of(TABLE4, almost_the_counts(), scale="smoke")
    assert claim in words((FIGURE4, ablation_findings(FIGURE4)))
    assert claim not in words((FIGURE4, smoke))
    assert "Nothing here is of a scale that says anything of the paper's claims." in words((FIGURE4, smoke))
    both = words((FIGURE4, smoke), (TABLE4, counted))
    assert "1 claims: in part 1. Experiments of scale smoke are left out" in both


def test_a_scale_that_has_grown_is_not_complete() -> None:
    """Findings of fewer runs than the scale has now."""
    whole = ablation_findings(FIGURE4)
    grid = {"run": FIGURE4.grids["small"]["run"] | {"seq_len": 256}}
    older = dataclasses.replace(whole, grid=grid, num_runs=240, num_finished=240)
    html = render_paper_report([(FIGURE4, older)])
    assert line_of(html, "figure4")[1:3] == ["partial", "240 of 272"]
    assert "The scale has 32 runs by now that it had not when this was found" in html
    assert "rebased paper run figure4 --scale small" in html


def test_shows_what_experiments_present(html: str) -> None:
    said = PageChecker(html).words
    for experiment, findings in entries():
        if findings is not None:
            section = experiment.present(dict(findings.data))
            assert section.title in said
            assert all(part in said for part in section.parts if isinstance(part, str))
            assert all(f'aria-label="{picture.caption}"' in html for picture in section.pictures)
    assert f"Scale small: {SCALES['small']}." in said
    assert "a <small> corpus" in said
    assert html.count("<svg") == 3  # Table 1's, and Figure 4's at two lengths
    assert "▲" in html
    assert "▼" in html


def test_says_how_it_was_made(html: str) -> None:
    """Machines alike but for how runs were grouped are one line."""
    assert f'<td class="number">200</td><td title="{COMMIT}">{COMMIT[:12]}</td><td>0.1.0</td><td>2.13.0</td>' in html
    assert f'<td class="number">28</td><td title="{COMMIT}-dirty">{COMMIT[:12]}-dirty</td>' in html
    assert '<th scope="row">learning_rate</th><td>0.001, 0.003</td>' in html
    assert '<th scope="row">task_options.num_pairs</th><td>32</td>' in html


def test_says_what_is_missing(html: str) -> None:
    said = PageChecker(html).words
    assert "44 of 272 runs are not finished" in said
    assert "<pre><code>rebased paper run table1 --scale small</code></pre>" in html
    assert "<pre><code>rebased paper run table9 --scale small</code></pre>" in html
    assert "rebased paper run figure4" not in said
    assert "rebased paper run table4 --scale paper" in words((TABLE4, None), scale="paper")


def test_commands_go_on_in_the_same_folder() -> None:
    """Elsewhere everything would be trained anew."""
    said = words((TABLE1, ablation_findings(TABLE1, num_finished=228)), (TABLE4, None), out=Path("my results"))
    assert "rebased paper run table1 --scale small --out 'my results'" in said
    assert "rebased paper run table4 --scale small --out 'my results'" in said


def test_nothing_finished_is_missing() -> None:
    """Experiments cannot present the numbers of no run."""
    empty = findings_of(TABLE1, {"cells": [], "comparisons": {}}, scale="paper", num_runs=960)
    html = render_paper_report([(TABLE1, empty)])
    assert line_of(html, "table1")[1] == "missing"
    assert "rebased paper run table1 --scale paper" in html
    assert "0 of 1 experiments have findings" in html


def test_shared_runs_count_once_and_others_not_at_all() -> None:
    """A minute each. Of Figure 7's runs half are Figure 1's; the others are not finished, and took no time."""
    runs = {name_of(config): 60.0 for config in FIGURE1.configs("small")}
    shared = findings_of(FIGURE7, {"cells": []}, num_runs=48, num_finished=24, num_waiting=24, seconds=24 * 60.0)
    given = (FIGURE1, dataclasses.replace(shared, experiment="figure1", num_runs=84)), (FIGURE7, shared)
    assert "Training took about 84 minutes; runs that several experiments share count once" in words(
        *given, seconds=runs | {"another run": 1e6}
    )
    some = runs | {next(iter(runs)): None}
    assert "Training took about 83 minutes, without runs whose time was not recorded" in words(*given, seconds=some)
    assert "Training took" not in words(*given)


def test_time_that_was_not_recorded_is_said() -> None:
    html = render_paper_report([(TABLE1, dataclasses.replace(ablation_findings(TABLE1), num_untimed=7))])
    assert line_of(html, "table1")[3] == "≥ 34.5"
    assert re.search('<td class="number" title="[^"]*">≥ 34.5</td>', html)
    assert "34.5 minutes of training, without 7 of the runs, whose time was not recorded" in html


def test_lines_of_a_grid_are_few() -> None:
    lengths = {128: 16, 256: 64}
    cells = [
        {"stack": stack, "seq_len": length, "task_options": {"num_pairs": pairs}}
        for stack in ("based", "x2")
        for length, pairs in lengths.items()
    ]
    cells[0]["watch"] = "gamma"
    grid = {"run": {"d_model": 16, "learning_rate": 1e-3, "seed": [1, 2]}, "cells": cells}
    html = render_paper_report([(FIGURE4, dataclasses.replace(ablation_findings(FIGURE4), grid=grid))])
    assert re.findall(
        r'<th scope="row">(.*?)</th><td class="number">(\d+)</td><td class="number">(\d+)</td>', html
    ) == [
        ("based", "128", "16"),
        ("based, x2", "256", "64"),
        ("x2", "128", "16"),
    ]
    assert '<th scope="col" class="number">task_options.num_pairs</th>' in html


def test_what_was_not_recorded_is_said() -> None:
    """Of runs made before machines were recorded, only their number is known."""
    findings = dataclasses.replace(ablation_findings(TABLE1), machines=[{"runs": 272}])
    html = render_paper_report([(TABLE1, findings)])
    assert '<th scope="row">not known</th><td class="number">272</td>' in html


def test_text_is_escaped() -> None:
    evil = "<script>alert('&')</script>"
    experiment = Experiment(
        name="evil",
        title=evil,
        grids=TABLE4.grids,
        measure=lambda material: {},
        present=lambda data: Section(evil, (evil,)),
    )
    html = render_paper_report([(experiment, findings_of(experiment, {}))])
    assert "<script" not in html
    assert PageChecker(html).text.count(evil) == 3


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        render_paper_report([(TABLE1, ablation_findings(TABLE1))])
    assert "26 of 28" in words((TABLE4, findings_of(TABLE4, almost_the_counts())))
