"""A recall run of two mixers, compared with statistics.

ReBased and Based learn to repeat a string of 8 tokens, for 80 steps only: two widths, four seeds each. The eight runs
of one are compared with the other's in pairs, of one width and one seed, by a test that asks how often chance alone
would do the same if the two were exchangeable. Given again, the command reads the finished runs from the disk.

    python examples/compare_mixers.py
"""

from pathlib import Path

from rebased.analysis.comparison import compare_kernels
from rebased.analysis.summary import summarize
from rebased.runs import find_runs
from rebased.training.engines import Serial
from rebased.training.grid import expand_grid
from rebased.training.sweep import run_sweep

GRID = {
    "stack": ["rebased", "based"],
    "d_model": [12, 24],
    "seq_len": 16,
    "vocab_size": 16,
    "task": "copying",
    "endless": True,
    "num_test": 250,
    "batch_size": 50,
    "learning_rate": 1e-2,
    "seed": [0, 1, 2, 3],
}


def main(folder: Path = Path("runs/compare_mixers"), epochs: int = 4, num_train: int = 1000) -> None:
    configs = expand_grid({"run": GRID | {"epochs": epochs, "num_train": num_train}})
    run_sweep(folder, configs, Serial("cpu"), report=lambda event: None)
    runs = list(find_runs(folder))

    for cell in summarize(runs):
        config = cell.runs[0].config
        print(f"{config['stack']}, width {config['d_model']}: accuracy {cell.mean:.3f} ± {cell.sd:.3f}")

    accuracies = {
        (run.config["stack"], run.config["d_model"], run.config["seed"]): run.result["accuracy"] for run in runs
    }
    (found,) = compare_kernels(accuracies)
    print(f"{found.a} less {found.b}: {found.difference:+.3f}, over {found.num_runs} pairs of runs")
    if found.interval is not None:
        print(f"95 % interval: {found.interval.low:+.3f} to {found.interval.high:+.3f}")
    verdict = found.verdict.replace("a better", f"{found.a} is better").replace("b better", f"{found.b} is better")
    print(f"p = {found.p_value:.4f}, and could not be below {found.test.smallest_p:.4f} with so few runs: {verdict}")


if __name__ == "__main__":
    main()
