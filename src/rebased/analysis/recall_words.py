"""What recall runs show, in sentences that their numbers decide."""

from collections.abc import Callable, Sequence

from rebased.analysis.recall_rows import RecallRow, accuracy, span
from rebased.runs import Run

__all__ = ["compare", "describe_learning", "describe_setting"]


def describe_learning(rows: Sequence[RecallRow], *, above: float = 0.9) -> str:
    """Who has learned the task, at the best learning rate and over all of them."""

    def counts(runs_of: Callable[[RecallRow], Sequence[Run]]) -> str:
        learned = [(row.name, [run.result["accuracy"] > above for run in runs_of(row)]) for row in rows]
        return ", ".join(f"{name} in {sum(runs)} of {len(runs)} runs" for name, runs in learned)

    said = f"Accuracy above {above:g} at the best learning rate: {counts(lambda row: row.runs)}"
    if all(len(row.learning_rates) == 1 for row in rows):
        return f"{said}."
    return f"{said}; at all that were tried: {counts(lambda row: row.tried)}."


def compare(one: RecallRow, other: RecallRow) -> list[str]:
    """Whether the means differ by more than the seeds do, who got there sooner, and what that is worth."""
    gap, spreads = one.mean - other.mean, [row.sd for row in (one, other) if row.sd is not None]
    first = f"{_named(one)}, {_named(other)}: "
    if gap == 0:
        first += "the means are equal."
    else:
        first += f"the mean of {(one if gap > 0 else other).name} is higher by {abs(gap):.3f}"
        if not spreads:
            first += "."
        elif abs(gap) > max(spreads):
            first += f", more than the larger standard deviation over seeds ({max(spreads):.3f})."
        else:
            first += (
                f", no more than the larger standard deviation over seeds ({max(spreads):.3f}): "
                "by accuracy, these runs do not tell the two apart."
            )
    goal = one.runs[0].config["stop_above"]
    second = f"{goal:g} was reached by {_reached(one)} and by {_reached(other)}."
    num_runs = min(len(one.runs), len(other.runs))
    third = (
        f"{num_runs} of each are too few to call a difference significant, or to exclude one. A run ends at {goal:g}, "
        "so of models that get there only the epochs differ; the learning rate is chosen by the accuracies shown here."
    )
    return [first, second, third]


def describe_setting(rows: Sequence[RecallRow]) -> dict[str, str]:
    """What the runs have in common, as their configs have it."""
    config = rows[0].runs[0].config
    options = ", ".join(f"{name} {value}" for name, value in config["task_options"].items())
    examples = "new ones every epoch" if config["endless"] else "the same ones every epoch"
    return {
        "task": f"{config['task']}: {options}, {config['seq_len']} tokens, vocabulary {config['vocab_size']}",
        "width": f"d_model {config['d_model']}, {config['dtype']}",
        "training": f"at most {config['epochs']} epochs of {config['num_train']:,} examples ({examples}), "
        f"batch {config['batch_size']}; a run ends when it reaches {config['stop_above']:g}",
        "test": f"{config['num_test']:,} examples from another seed, after each epoch; the best epoch counts",
        "optimizer": f"AdamW, weight decay {config['weight_decay']:g}, learning rate along a cosine to 0",
        "learning rates": f"{', '.join(f'{rate:g}' for rate in rows[0].learning_rates)}; "
        "for each model the one with the highest mean over seeds",
        "seeds": ", ".join(str(run.config["seed"]) for run in rows[0].runs)
        + " (initial weights, order of examples, dropout)",
    }


def _named(row: RecallRow) -> str:
    return f"{row.name} {accuracy(row.mean, row.sd)}"


def _reached(row: RecallRow) -> str:
    epochs = [run.result["epochs"] for run in row.runs if run.result["finished"] == "reached"]
    when = f" (after {span(epochs)} epochs)" if epochs else ""
    return f"{len(epochs)} of {len(row.runs)} runs of {row.name}{when}"
