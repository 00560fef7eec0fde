"""Table 3 with Figures 5 and 8: the second layer's attention maps against the positions that hold the answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rebased.analysis.holm import holm
from rebased.analysis.pages import Cell, Claim, Picture, Section, Table
from rebased.analysis.sign_flip import least_p, sign_flip_test
from rebased.analysis.welch import welch_p
from rebased.paper.experiment import Data, Experiment, Material
from rebased.paper.map_measures import measure_maps, show_maps
from rebased.paper.map_pictures import draw_maps
from rebased.paper.map_runs import GRIDS, MODELS, best_runs, fingerprint, kept_runs, load_model, of_widest
from rebased.paper.published import TABLE_3
from rebased.paper.recall_cells import listed, over_seeds, seeds_text, spread_text
from rebased.paper.recipes import ALPHA
from rebased.runs import Run

__all__ = ["MEASURES", "NUM_EXAMPLES", "TABLE3"]

MEASURES = {"iou": "IoU", "accuracy": "accuracy", "at_value": "attention at the value", "entropy": "entropy"}
NUM_EXAMPLES = {"smoke": 200, "small": 10_000, "paper": 10_000}
"""That are measured, by scale."""
FAR_LESS = 0.5
"""Of softmax attention's IoU, at most: what the paper's "far less" is taken to mean. In it they are 0.16 and 0.17."""
NUM_SHOWN = 3
"""That are drawn: one in Figure 5, the others in Figure 8."""


def measure(material: Material) -> Data:
    kept = kept_runs(material, "table3")
    best = best_runs(material.runs)
    shown = {run.folder.name for run, *_ in of_widest(best).values()}
    runs: dict[str, Data] = {}
    for chosen in best.values():
        for run in chosen:
            name = run.folder.name
            entry = kept.get(name)
            if entry is None or (name in shown and "examples" not in entry):
                entry = _look_at(run, material, is_shown=name in shown)
            runs[name] = entry
    return {"num_examples": NUM_EXAMPLES[material.scale], "runs": runs} | compare(runs)


def compare(runs: Mapping[str, Data]) -> Data:
    """Of what was seen in each run: every model of every width, and the difference of ReBased and Based."""
    alike: dict[tuple[int, str], list[Data]] = {}
    for entry in runs.values():
        alike.setdefault((entry["d_model"], entry["stack"]), []).append(entry)
    widths = sorted({width for width, _ in alike})
    models = [
        _describe(width, stack, alike[width, stack]) for width in widths for stack in MODELS if (width, stack) in alike
    ]
    differences = [
        _difference(width, alike.get((width, "copy_rebased"), ()), alike.get((width, "copy_based"), ()))
        for width in widths
    ]
    return {"models": models, "differences": [each for each in differences if each is not None]}


def _look_at(run: Run, material: Material, *, is_shown: bool) -> Data:
    model, config = load_model(run, material.device)
    num_pairs = config.task_options["num_pairs"]
    examples = config.test_set(material.device, NUM_EXAMPLES[material.scale])
    entry = {
        "stack": config.stack,
        "seq_len": config.seq_len,
        "num_pairs": num_pairs,
        "d_model": config.d_model,
        "learning_rate": config.learning_rate,
        "seed": config.seed,
        "epochs": run.result["epochs"],
        "fingerprint": fingerprint(run),
        **measure_maps(model, examples, num_pairs=num_pairs),
    }
    if is_shown:
        entry["examples"] = show_maps(model, examples[:NUM_SHOWN], num_pairs=num_pairs)
    return entry


def _describe(width: int, stack: str, entries: Sequence[Data]) -> Data:
    return {
        "d_model": width,
        "stack": stack,
        "learning_rate": entries[0]["learning_rate"],
        "seeds": [entry["seed"] for entry in entries],
        "epochs": [entry["epochs"] for entry in entries],
    } | {name: over_seeds([entry[name] for entry in entries]) for name in MEASURES}


def _difference(width: int, rebased: Sequence[Data], based: Sequence[Data]) -> Data | None:
    """ReBased less Based, seed by seed; None without a seed that both have."""
    by_seed = {entry["seed"]: entry for entry in based}
    pairs = [(entry, by_seed[entry["seed"]]) for entry in rebased if entry["seed"] in by_seed]
    if not pairs:
        return None
    differences = {name: [ours[name] - theirs[name] for ours, theirs in pairs] for name in MEASURES}
    return {"d_model": width, "seeds": [ours["seed"] for ours, _ in pairs]} | {
        name: over_seeds(values) | _test(values) for name, values in differences.items()
    }


def _test(differences: Sequence[float]) -> Data:
    test = sign_flip_test(np.array(differences))
    return {"p_value": test.p_value, "smallest_p": test.smallest_p}


# ---- To be read ----


def present(data: Data) -> Section:
    title = "Table 3 with Figures 5 and 8: attention maps against the truth"
    if not data["runs"]:
        return Section(title, ("No run has finished.",))
    parts: list[Any] = [_method(data)]
    differences = {each["d_model"]: each for each in data["differences"]}
    for width in sorted({model["d_model"] for model in data["models"]}):
        parts.append(_table(width, _of_width(data, width)))
        if width in differences:
            parts += [_difference_table(differences[width]), _what_it_says(differences[width])]
    widest = max(model["d_model"] for model in data["models"])
    shown = {
        entry["stack"]: entry["examples"]
        for entry in data["runs"].values()
        if "examples" in entry and entry["d_model"] == widest
    }
    named = {name: shown[stack] for stack, name in MODELS.items() if stack in shown}
    first, further = ({name: each[part] for name, each in named.items()} for part in (slice(1), slice(1, None)))
    about = f"attention of the queries (rows, by position) to the pairs (columns), beside the truth, d = {widest}"
    parts.append(Picture("figure5", draw_maps(first), f"Figure 5: {about}; the first example, the first seed"))
    parts.append(Picture("figure8", draw_maps(further), f"Figure 8: {about}; further examples"))
    return Section(title, tuple(parts), (_attention_claim(data, widest), _rebased_claim(data)))


def _attention_claim(data: Data, width: int) -> Claim:
    theirs = "Softmax attention's maps meet the truth, Based's and ReBased's far less (IoU 0.999, 0.157 and 0.173)."
    iou = {model["stack"]: model["iou"] | {"num": len(model["seeds"])} for model in _of_width(data, width)}
    said = ", ".join(f"{name} {spread_text(iou[stack], digits=3)}" for stack, name in MODELS.items() if stack in iou)
    said = f"At d = {width}: {said}."
    if len(iou) < len(MODELS):
        return Claim(theirs, said, "not run")
    attention, *others = (iou[stack] for stack in MODELS)
    if any(each["sd"] is None for each in iou.values()):
        return Claim(theirs, f"{said} Of one seed nothing is tested.", "not shown")
    tests = [
        welch_p(attention["mean"], attention["sd"], attention["num"], each["mean"], each["sd"], each["num"])
        for each in others
    ]
    p = float(holm(np.array(tests)).max())
    is_far = all(each["mean"] <= FAR_LESS * attention["mean"] for each in others)
    verdict = "not shown" if p >= ALPHA else "agrees" if is_far else "differs"
    ratios = listed(f"{iou[f'copy_{name}']['mean'] / TABLE_3[name][0]:.1f}" for name in ("based", "rebased"))
    return Claim(
        theirs,
        f"{said} Attention is {'apart from' if p < ALPHA else 'not shown to be apart from'} both (Welch's tests, p = "
        f"{p:.2g} at most, corrected). The kernels' numbers themselves are {ratios} of the paper's.",
        verdict,
    )


def _rebased_claim(data: Data) -> Claim:
    theirs = "ReBased's maps meet the truth more than Based's."
    if not data["differences"]:
        return Claim(theirs, "The two have no seed in common yet.", "not run")
    found = _over_widths(data)
    iou, verdict = found["iou"], "not shown"
    if iou["p_value"] < ALPHA:
        verdict = "agrees" if iou["mean"] > 0 else "differs"
    widths = [difference["d_model"] for difference in data["differences"]]
    unit = "seed" if len(widths) == 1 else "pair of width and seed"
    return Claim(theirs, f"At d = {listed(widths)}. {_what_it_says(found, unit)}", verdict)


def _over_widths(data: Data) -> Data:
    """As `_difference` has it of one width: five seeds of one can never show a difference, those of several can."""
    iou = {(entry["stack"], entry["d_model"], entry["seed"]): entry["iou"] for entry in data["runs"].values()}
    shared = [(each["d_model"], seed) for each in data["differences"] for seed in each["seeds"]]
    values = [iou["copy_rebased", width, seed] - iou["copy_based", width, seed] for width, seed in shared]
    return {"seeds": shared, "iou": over_seeds(values) | _test(values)}


def _of_width(data: Data, width: int) -> list[Data]:
    return [model for model in data["models"] if model["d_model"] == width]


def _method(data: Data) -> str:
    entry = next(iter(data["runs"].values()))
    return (
        f"Recall of {entry['num_pairs']} pairs in {entry['seq_len']} tokens. The paper does not say how wide its "
        "models were. The first layer adds to each token the one before it and learns nothing. IoU is Σ min / Σ max of "
        "the second layer's map and the truth (1 at the position of the value asked for), over the rows of "
        f"queries and the columns of pairs of {data['num_examples']:,} examples; maps are averaged over heads, their "
        "rows normalised over all tokens. Entropy is that of these rows, 1 if a query attends to all tokens alike. The "
        "examples begin with those that the runs were tested on in training; weights are those of a run's last epoch. "
        "Each model has its best learning rate. Numbers are mean ± standard deviation over seeds and, of five seeds or "
        "more, a bootstrap interval of the mean in brackets; the paper has one number of each, without a spread, so no "
        "test tells whether ours differ from it."
    )


def _table(width: int, models: Sequence[Data]) -> Table:
    rows: list[list[Cell | str]] = []
    by_stack = {model["stack"]: model for model in models}
    for stack, name in MODELS.items():
        model = by_stack.get(stack)
        rows.append([name, *(_entry(model, measure) for measure in MEASURES)])
        iou, accuracy = TABLE_3[stack.removeprefix("copy_")]
        rows.append([Cell(text, "faint") for text in ("the paper's", f"{iou:.3f}", f"{accuracy:.3f}", "", "")])
    seeds = seeds_text(len(model["seeds"]) for model in models)
    return Table.of(f"Second layers, d = {width}, {seeds}", ["second layer", *MEASURES.values()], rows)


def _entry(model: Data | None, measure: str) -> Cell:
    if model is None:
        return Cell("not run", "faint")
    seeds, epochs = (", ".join(map(str, model[name])) for name in ("seeds", "epochs"))
    return Cell(
        spread_text(model[measure], digits=3),
        note=f"learning rate {model['learning_rate']:g}; seeds {seeds}; epochs {epochs}",
    )


def _difference_table(difference: Data) -> Table:
    rows = [
        [name, spread_text(difference[measure], digits=3, sign="+"), f"{difference[measure]['p_value']:.2g}"]
        for measure, name in MEASURES.items()
    ]
    caption = (
        f"d = {difference['d_model']}: ReBased − Based, paired by seed, with the p of a sign-flip test (not corrected)"
    )
    return Table.of(caption, ["", "difference", "p"], rows)


def _what_it_says(difference: Data, unit: str = "seed") -> str:
    count, found = len(difference["seeds"]), difference["iou"]
    published = TABLE_3["rebased"][0] - TABLE_3["based"][0]
    said = f"In the paper ReBased's IoU is {published:.3f} above Based's; here the difference is {found['mean']:+.3f}"
    if least_p(count) >= ALPHA:
        seeds = f"this one {unit}" if count == 1 else f"these {count} {_plural(unit)}"
        return (
            f"{said}. With {seeds} the least p that this test can give is {least_p(count):.2g}: no difference can "
            f"be shown at {ALPHA}, however large."
        )
    verdict = "is shown" if found["p_value"] < ALPHA else "is not shown"
    level = f"; so few are not level that it cannot be less than {found['smallest_p']:.2g}"
    p = f"p = {found['p_value']:.2g}{level if found['smallest_p'] >= ALPHA else ''}"
    return f"{said}. A difference of the two {verdict} by {count} {_plural(unit)} ({p})."


def _plural(unit: str) -> str:
    first, *others = unit.split(" ")
    return " ".join([f"{first}s", *others])


TABLE3 = Experiment(
    name="table3",
    title="Attention maps against the truth (with Figures 5 and 8)",
    grids=GRIDS,
    measure=measure,
    present=present,
    needs="weights",
)
