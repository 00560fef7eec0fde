"""The page of all experiments: our numbers beside the paper's, and how each was made."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rebased.analysis.html import Html, command, definitions, folded, page, paragraph, render, section, table
from rebased.analysis.pages import Cell, Table
from rebased.paper.experiment import SCALES, Experiment
from rebased.paper.findings import Findings
from rebased.training.folders import name_of
from rebased.training.grid import expand_grid

__all__ = ["Entry", "render_paper_report"]

Entry = tuple[Experiment, Findings | None]
"""None where nothing was found yet."""

_LEGEND = {
    "▲ higher, ▼ lower": "Than what it is compared with: the paper's number, unless the table says otherwise. Of "
    "means, only differences that a test shows are marked; others may be there too.",
    "0.59 ± 0.06": "Mean and standard deviation (n − 1) over seeds, unless the text says otherwise.",
    "[0.52, 0.64]": "An interval of the mean before it, by bootstrap over seeds, if there are at least five. Asked for "
    "95 %, it covers the mean in 80 to 85 % of cases of five seeds, in fewer where some runs fail: more is not in so "
    "few. Of differences between kernels, what a test does not refuse at 5 %.",
    "in grey": "The paper's own numbers, and what was not run.",
    "tooltips": "Many cells say more when pointed at: the learning rate, the seeds, a p-value.",
}
_MADE_WITH = {"device_name": "device", "commit": "commit", "rebased": "rebased", "torch": "torch", "triton": "triton"}
"""What of a machine is shown, and as what."""


def render_paper_report(entries: Sequence[Entry], *, scale: str = "small", out: Path | None = None) -> str:
    """One HTML file, in the order of ``entries``; ``scale`` is proposed for what is missing.

    ``out``: the folder that its commands name, unless it is theirs by default.
    ImportError, saying what to install, where a picture needs matplotlib and there is none.
    """
    title = "The ReBased paper, reproduced"
    return page(
        title,
        title,
        [
            paragraph(
                "Tables and figures of “Linear Transformers with Learnable Kernel Functions are Better In-Context "
                "Models” (Aksenov et al., 2024), from our own runs, beside the numbers that the paper has."
            ),
            table(_overview(entries), anchors=[experiment.name for experiment, _ in entries]),
            section("How to read this", [definitions(_LEGEND)]),
            *(_experiment_section(experiment, findings, scale, out) for experiment, findings in entries),
            section("In all", [paragraph(_in_all(entries))]),
        ],
    )


def _overview(entries: Sequence[Entry]) -> Table:
    return Table.of(
        "What there is",
        ("experiment", "status", "runs", "training minutes", "scale", "name"),
        [
            [experiment.title, *_state(findings if _has_something(findings) else None), experiment.name]
            for experiment, findings in entries
        ],
    )


def _state(findings: Findings | None) -> list[Cell | str]:
    if findings is None:
        return [Cell("missing", "faint"), "", "", ""]
    if not findings.num_runs:  # whether all is there, its section says
        return ["shown", Cell("none", "faint", "it has no runs of its own"), "", findings.scale]
    status = "complete" if findings.is_complete else "partial"
    minutes = f"{'≥ ' if findings.num_untimed else ''}{findings.seconds / 60:,.1f}"
    return [status, _finished(findings), Cell(minutes, note=findings.time_spent), findings.scale]


def _has_something(findings: Findings | None) -> bool:
    """Of no finished run there is nothing to present."""
    return findings is not None and not findings.is_empty


def _finished(findings: Findings) -> str:
    return f"{findings.num_finished:,} of {findings.num_runs:,}"


# ---- One experiment ----


def _experiment_section(experiment: Experiment, findings: Findings | None, scale: str, out: Path | None) -> Html:
    if findings is None or not _has_something(findings):
        wanted = scale if findings is None else findings.scale
        needs = (
            "To train what it needs, and measure:" if experiment.configs(wanted) else "It trains nothing. To make it:"
        )
        parts = [paragraph(f"Nothing was found yet. {needs}"), _to_run(experiment, wanted, out)]
        return section(experiment.title, parts, anchor=experiment.name)
    content = experiment.section(findings.data)
    parts = [paragraph(_about_scale(findings), note=True), *map(render, content.parts)]
    if not findings.is_complete:
        missing = findings.num_runs - findings.num_finished
        waiting = (
            f" Neither are {findings.num_waiting:,} that wait for others of their cell." if findings.num_waiting else ""
        )
        said = (
            f"{missing:,} of {findings.num_runs:,} runs are not finished, and not in these numbers.{waiting} To go on:"
        )
        parts += [paragraph(said), _to_run(experiment, findings.scale, out)]
    if findings.num_runs:
        parts.append(folded("How this was made", _how_made(findings)))
    return section(content.title, parts, anchor=experiment.name)


def _to_run(experiment: Experiment, scale: str, out: Path | None) -> Html:
    place = "" if out is None else f" --out {shlex.quote(str(out))}"
    return command(f"rebased paper run {experiment.name} --scale {scale}{place}")


def _about_scale(findings: Findings) -> str:
    if not findings.num_runs:
        return f"Scale {findings.scale}; it has no runs of its own and is the same at every scale."
    return f"Scale {findings.scale}: {SCALES[findings.scale]}."


def _how_made(findings: Findings) -> Iterator[Html]:
    spent = f"{findings.time_spent}; runs that shared a card shared its time"
    yield definitions({"runs": f"{_finished(findings)} finished", "device time": spent})
    if findings.machines:
        yield table(_machines(findings))
    for each in _grid_tables(findings.grid):
        yield table(each)


def _machines(findings: Findings) -> Table:
    """How many runs each device, commit and set of versions made, whatever else differed."""
    made: Counter[tuple[str, ...]] = Counter()
    for machine in findings.machines:
        made[tuple(str(machine.get(name, "not known") or "none") for name in _MADE_WITH)] += machine["runs"]
    rows: list[list[Cell | str]] = [
        [device, f"{runs:,}", _commit(commit), *versions] for (device, commit, *versions), runs in made.most_common()
    ]
    device, *others = _MADE_WITH.values()
    return Table.of("Made with", (device, "runs", *others), rows)


def _commit(commit: str) -> Cell:
    whole, dash, changed = commit.partition("-")
    return Cell(f"{whole[:12]}{dash}{changed}", note=commit)


def _grid_tables(grid: Mapping[str, Any]) -> Iterator[Table]:
    """What all runs have in common, then what is bound together."""
    cells = [dict(_fields(cell)) for cell in grid.get("cells", ())]
    bound = ", with each line of the next table," if cells else ""
    yield Table.of(
        f"The grid: every combination of these values{bound} is a run; all else is the paper's recipe",
        ("field", "values"),
        list(_fields(grid.get("run", {}))),
    )
    if cells:
        yield _bound_together(cells)


def _bound_together(cells: Sequence[Mapping[str, str]]) -> Table:
    """Cells that differ in their first field alone share a line."""
    first, *others = dict.fromkeys(name for cell in cells for name in cell)
    lines: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        lines.setdefault(tuple(cell.get(name, "") for name in others), []).append(cell.get(first, ""))
    rows = [[", ".join(values), *rest] for rest, values in lines.items()]
    return Table.of("Values that go together, in the place of any above", (first, *others), rows)


def _fields(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """``task_options.num_pairs`` and ``32``."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", ", ".join(map(_value, value if isinstance(value, list) else [value]))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# ---- All of them ----


def _in_all(entries: Sequence[Entry]) -> str:
    found = [findings for _, findings in entries if findings is not None]
    presented = sum(map(_has_something, found))
    untimed = ", without runs whose time was not recorded" if any(each.num_untimed for each in found) else ""
    return (
        f"{presented} of {len(entries)} experiments have findings. Training took about "
        f"{_total_seconds(found) / 60:,.0f} minutes{untimed}; runs that several experiments share count once."
    )


def _total_seconds(found: Sequence[Findings]) -> float:
    """As if an experiment's runs had equal parts in its time: what it shares with those before it is left out."""
    seen: set[str] = set()
    total = 0.0
    for findings in found:
        if findings.num_finished:
            names = {name_of(config) for config in expand_grid(dict(findings.grid))}
            total += findings.seconds * len(names - seen) / len(names)
            seen |= names
    return total
