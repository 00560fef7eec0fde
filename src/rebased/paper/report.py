"""The page of all experiments: our numbers beside the paper's, and how each was made."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rebased.analysis.html import Html, claims, command, definitions, folded, page, paragraph, render, section, table
from rebased.analysis.pages import VERDICTS, Cell, Section, Table
from rebased.paper.experiment import SCALES, Experiment
from rebased.paper.findings import Findings
from rebased.training.folders import name_of
from rebased.training.grid import expand_grid

__all__ = ["ExperimentFindings", "render_paper_report"]

ExperimentFindings = tuple[Experiment, Findings | None]
"""None where nothing was found yet."""


@dataclass(frozen=True)
class _Shown:
    """An experiment, and what there is to be shown of it."""

    experiment: Experiment
    findings: Findings | None
    content: Section | None
    """None where nothing was found yet, or no run of it is finished."""

    @classmethod
    def of(cls, experiment: Experiment, findings: Findings | None) -> Self:
        if findings is None or findings.is_empty:
            return cls(experiment, findings, None)
        return cls(experiment, findings, experiment.section(findings.data))


_LEGEND = {
    "▲ higher, ▼ lower": "Than what it is compared with: the paper's number or, where a row is a pair, the second of "
    "it. Of means, only differences that a test shows are marked; others may be there too.",
    "0.59 ± 0.06": "Mean and standard deviation (n − 1) over seeds, unless the text says otherwise.",
    "[0.52, 0.64]": "An interval of the mean before it, by bootstrap over seeds, if there are at least five. Asked for "
    "95 %, it covers the mean in 80 to 85 % of cases of five seeds, in fewer where some runs fail: more is not in so "
    "few. Of differences between kernels, what a test does not refuse at 5 %.",
    "in grey": "The paper's own numbers, and what was not run.",
    "tooltips": "Many cells say more when pointed at: the learning rate, the seeds, a p-value.",
}
_MADE_WITH = {"device_name": "device", "commit": "commit", "rebased": "rebased", "torch": "torch", "triton": "triton"}
"""What of a machine is shown, and as what."""


def render_paper_report(
    entries: Sequence[ExperimentFindings],
    *,
    scale: str = "small",
    out: Path | None = None,
    seconds: Mapping[str, float | None] | None = None,
) -> str:
    """One HTML file, in the order of ``entries``; ``scale`` is proposed for what is missing.

    ``out``: the folder that its commands name, unless it is theirs by default. ``seconds``: of runs by name, None where
    nothing recorded them; without it the time of all experiments together, which share runs, is not said.
    ImportError, saying what to install, where a picture needs matplotlib and there is none.
    """
    title = "The ReBased paper, reproduced"
    shown = [_Shown.of(experiment, findings) for experiment, findings in entries]
    return page(
        title,
        title,
        [
            paragraph(
                "Tables and figures of “Linear Transformers with Learnable Kernel Functions are Better In-Context "
                "Models” (Aksenov et al., 2024), from our own runs, beside the numbers that the paper has."
            ),
            section("What the paper says, and what these runs say", _all_claims(shown)),
            section(
                "What there is",
                [
                    paragraph(_in_all(entries, seconds or {})),
                    table(_overview(entries), anchors=[experiment.name for experiment, _ in entries]),
                ],
            ),
            section("How to read this", [definitions(_LEGEND)]),
            *(_experiment_section(each, scale, out) for each in shown),
        ],
    )


def _all_claims(shown: Sequence[_Shown]) -> list[Html]:
    """Counted by verdict, then one by one."""
    found = [
        (_number(each.experiment), each.experiment.name, claim)
        for each in shown
        if each.content is not None and each.findings is not None and each.findings.speaks_of_the_paper
        for claim in each.content.claims
    ]
    if not found:
        return [paragraph("Nothing here is of a scale that says anything of the paper's claims.")]
    counts = Counter(claim.verdict for *_, claim in found)
    counted = ", ".join(f"{verdict} {counts[verdict]}" for verdict in VERDICTS if counts[verdict])
    smoke = any(each.findings is not None and not each.findings.speaks_of_the_paper for each in shown)
    left_out = " Experiments of scale smoke are left out: they show that it works, not what is true." if smoke else ""
    tried = [each for each in found if each[-1].verdict != "not run"]
    others = [each for each in found if each[-1].verdict == "not run"]
    parts = [paragraph(f"{len(found)} claims: {counted}.{left_out}"), claims(tried)]
    if others:
        parts.append(folded(f"Not run: {len(others)}", [claims(others)]))
    return [*parts, folded("What the words mean", [definitions(VERDICTS)])]


def _number(experiment: Experiment) -> str:
    """``Table 1`` of table1: as the paper calls it."""
    return re.sub(r"(?<=[a-z])(?=\d)", " ", experiment.name).capitalize()


def _overview(entries: Sequence[ExperimentFindings]) -> Table:
    return Table.of(
        "Tables and figures",
        ("experiment", "status", "runs", "training minutes", "scale", "name"),
        [
            [
                f"{_number(experiment)}: {experiment.title}",
                *_state(experiment, findings if _has_something(findings) else None),
                experiment.name,
            ]
            for experiment, findings in entries
        ],
    )


def _state(experiment: Experiment, findings: Findings | None) -> list[Cell | str]:
    if findings is None:
        return [Cell("missing", "faint"), "", "", ""]
    if not findings.num_runs:  # whether all is there, its section says
        return ["shown", Cell("none", "faint", "it has no runs of its own"), "", findings.scale]
    status = "complete" if findings.is_complete and not _num_new(experiment, findings) else "partial"
    minutes = f"{'≥ ' if findings.num_untimed else ''}{findings.seconds / 60:,.1f}"
    return [status, _finished(experiment, findings), Cell(minutes, note=findings.time_spent), findings.scale]


def _has_something(findings: Findings | None) -> bool:
    """Of no finished run there is nothing to present."""
    return findings is not None and not findings.is_empty


def _finished(experiment: Experiment, findings: Findings) -> str:
    return f"{findings.num_finished:,} of {findings.num_runs + _num_new(experiment, findings):,}"


def _num_new(experiment: Experiment, findings: Findings) -> int:
    """Runs that the scale has now, and had not when this was found."""
    if not findings.num_runs or findings.grid == experiment.grids[findings.scale]:
        return 0
    asked = {name_of(config) for config in expand_grid(dict(findings.grid))}
    return len({name_of(config) for config in experiment.configs(findings.scale)} - asked)


# ---- One experiment ----


def _experiment_section(shown: _Shown, scale: str, out: Path | None) -> Html:
    experiment, findings, content = shown.experiment, shown.findings, shown.content
    if findings is None or content is None:
        wanted = scale if findings is None else findings.scale
        needs = (
            "To train what it needs, and measure:" if experiment.configs(wanted) else "It trains nothing. To make it:"
        )
        parts = [paragraph(f"Nothing was found yet. {needs}"), _to_run(experiment, wanted, out)]
        return section(experiment.title, parts, anchor=experiment.name)
    parts = [paragraph(_about_scale(findings), note=True), *map(render, content.parts)]
    missing = _what_is_missing(experiment, findings)
    if missing:
        parts += [paragraph(f"{missing} To go on:"), _to_run(experiment, findings.scale, out)]
    if findings.num_runs:
        parts.append(folded("How this was made", _how_made(experiment, findings)))
    return section(content.title, parts, anchor=experiment.name)


def _what_is_missing(experiment: Experiment, findings: Findings) -> str:
    said = []
    missing, new = findings.num_runs - findings.num_finished, _num_new(experiment, findings)
    if missing:
        said.append(f"{missing:,} of {findings.num_runs:,} runs are not finished, and not in these numbers.")
    if findings.num_waiting:
        said.append(f"Neither are {findings.num_waiting:,} that wait for others of their cell.")
    if new:
        said.append(f"The scale has {new:,} runs by now that it had not when this was found: they are not in it.")
    return " ".join(said)


def _to_run(experiment: Experiment, scale: str, out: Path | None) -> Html:
    place = "" if out is None else f" --out {shlex.quote(str(out))}"
    return command(f"rebased paper run {experiment.name} --scale {scale}{place}")


def _about_scale(findings: Findings) -> str:
    if not findings.num_runs:
        return f"Scale {findings.scale}; it has no runs of its own and is the same at every scale."
    return f"Scale {findings.scale}: {SCALES[findings.scale]}."


def _how_made(experiment: Experiment, findings: Findings) -> Iterator[Html]:
    spent = f"{findings.time_spent}; runs that shared a card shared its time"
    yield definitions({"runs": f"{_finished(experiment, findings)} finished", "device time": spent})
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


def _in_all(entries: Sequence[ExperimentFindings], seconds: Mapping[str, float | None]) -> str:
    found = [(experiment, findings) for experiment, findings in entries if findings is not None]
    presented = sum(_has_something(findings) for _, findings in found)
    devices = {machine.get("device_name") for _, each in found for machine in each.machines} - {None}
    where = f" Devices: {', '.join(sorted(map(str, devices)))}." if devices else ""
    names = {name_of(config) for experiment, findings in found for config in experiment.configs(findings.scale)}
    return f"{presented} of {len(entries)} experiments have findings.{_training_took(names, seconds)}{where}"


def _training_took(names: Iterable[str], seconds: Mapping[str, float | None]) -> str:
    spent = [seconds[name] for name in names if name in seconds]
    timed = [each for each in spent if each is not None]
    if not timed:
        return ""
    untimed = ", without runs whose time was not recorded" if len(timed) < len(spent) else ""
    minutes = f"{sum(timed) / 60:,.0f} minutes"
    return f" Training took about {minutes}{untimed}; runs that several experiments share count once."
