"""Table 2: perplexity of language models, all tokens, those that recall (AR) and the others."""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rebased.analysis.pages import Cell, Section, Table
from rebased.paper.experiment import NO_GRIDS, Data, Experiment
from rebased.paper.language_claims import language_claims
from rebased.paper.language_runs import KINDS, NAMES, Ratio, family_of, group_runs, mean_text, measure, ratios
from rebased.paper.published import TABLE_2, TABLE_2_TOKENS, TABLE_9

__all__ = ["TABLE2"]


def present(data: Data) -> Section:
    runs = data["runs"]
    parts: list[Any] = []
    if runs:
        corpora = ", ".join(sorted({run["corpus"] for run in runs}))
        fraction = statistics.fmean(run["ar_fraction"] for run in runs)
        parts.append(
            f"Ours on {corpora}, {fraction:.0%} of tokens AR (the paper's split implies 45 %); the paper's on the "
            "Pile. Perplexities of different corpora, sizes and lengths of training do not compare, nor need the order "
            "of models be the same."
        )
    else:
        parts.append("No language model has been trained yet: what is here is the paper's.")
    groups = group_runs(runs)
    rows: list[list[Cell | str]] = []
    for family, name in NAMES.items():
        rows += [_row(name, group) for group in groups if family_of(group) == family]
        quoted = (f"{value:.2f}" for value in TABLE_2[family])
        known = (f"{name}, the paper's", f"{TABLE_9[family]:,}", f"{TABLE_2_TOKENS:,}", "", *quoted)
        rows.append([Cell(each, "faint") for each in known])
    rows += [_row(group[0]["model"] or "unknown", group) for group in groups if family_of(group) not in NAMES]
    header = ("model", "parameters", "tokens", "seeds", "all", "AR", "non-AR")
    parts.append(Table.of("perplexity, mean ± standard deviation over seeds", header, rows))
    compared = ratios(groups)
    if compared:
        parts.append(
            "Models trained and evaluated alike are compared in pairs, by Welch's test of the logarithms of their "
            "perplexities over seeds, which takes these to be normal, with Holm's correction for the number of ratios."
        )
        parts.append(_pairs_table(compared))
    parts += _how_made(runs)
    return Section("Table 2: language models", tuple(parts), language_claims(groups, compared))


def _row(name: str, runs: Sequence[Data]) -> list[Cell | str]:
    tokens = runs[0]["tokens"]
    return [
        name,
        f"{runs[0]['parameters']:,}",
        "unknown" if tokens is None else f"{tokens:,}",
        str(len(runs)),
        *(mean_text(runs, kind) for kind in KINDS),
    ]


def _pairs_table(compared: Sequence[Ratio]) -> Table:
    names = _short_names({name for ratio in compared for name in (ratio.a, ratio.b)})
    rows: list[list[Cell | str]] = []
    for ratio in compared:
        tone = {ratio.a: "lower", ratio.b: "higher"}.get(ratio.better or "", "")
        rows.append(
            [
                f"{names[ratio.a]} over {names[ratio.b]}",
                KINDS[ratio.kind],
                Cell(f"{100 * math.expm1(ratio.log):+.2f} %", tone),
                f"{ratio.p_value:.2g}",
                f"{ratio.adjusted_p:.2g}",
                "no difference shown" if ratio.better is None else f"{names[ratio.better]} better",
            ]
        )
    return Table.of(
        f"all {len(compared)} ratios of perplexities, less is better",
        ("pair", "tokens", "ratio − 1", "p", "p (Holm)", "verdict"),
        rows,
        num_keys=2,
    )


def _short_names(models: Collection[str]) -> dict[str, str]:
    """``Based`` for ``based-medium``, where no other of these would be so called."""
    families = Counter(model.split("-")[0] for model in models)
    return {
        model: NAMES[family] if families[family := model.split("-")[0]] == 1 and family in NAMES else model
        for model in models
    }


def _how_made(runs: Sequence[Data]) -> list[Table]:
    """What was recorded of it: values and, where they differ, of how many runs each is."""
    found: dict[str, Counter[str]] = {}
    for run in runs:
        sources = {"": run.get("made_with"), "training ": run["recipe"], "evaluation ": run["config"]}
        for kind, values in sources.items():
            for name, value in (values or {}).items():
                if not isinstance(value, Mapping):
                    found.setdefault(f"{kind}{name}", Counter())[_spelled(name, value)] += 1
    rows = [[name, _counted(values, len(runs))] for name, values in found.items()]
    caption = "How these were made; how long it took was not recorded"
    return [Table.of(caption, ("field", "value"), rows)] if rows else []


def _spelled(name: str, value: Any) -> str:
    if name == "commit" and isinstance(value, str):
        return value[:12]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _counted(values: Counter[str], num_runs: int) -> str:
    if values.total() == num_runs and len(values) == 1:
        return next(iter(values))
    return ", ".join(f"{value} ({count} of {num_runs})" for value, count in values.most_common())


TABLE2 = Experiment(
    name="table2",
    title="Perplexity of language models",
    grids=NO_GRIDS,
    measure=measure,
    present=present,
)
