"""The code in the README and the docs runs, block after block, as a reader would type it."""

import json
import re
import statistics
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from rebased.analysis.holm import holm
from rebased.bench import DecodeBenchResult, OpsBenchResult
from rebased.bench.lm_generate_results import GenerateBenchResult
from rebased.bench.lm_train_results import TrainBenchResult
from rebased.layers import KERNELS, MIXERS
from rebased.paper.ablation import KERNELS as TABLE_1_NAMES
from rebased.paper.ablation import STUCK
from rebased.paper.figure1 import MIXERS as FIGURE_1_NAMES
from rebased.paper.language_runs import NAMES as TABLE_2_NAMES
from rebased.paper.map_runs import MODELS as TABLE_3_NAMES
from rebased.paper.published import TABLE_1, TABLE_1_MEANS, TABLE_3
from rebased.paper.recipes import ALPHA
from rebased.paper.registry import EXPERIMENTS
from rebased.tasks import TASKS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("examples", "benchmarks", "results")
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / folder / "README.md" for folder in FOLDERS)]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_blocks_run(page: Path) -> None:
    namespace: dict[str, object] = {}
    with patch.dict(MIXERS), patch.dict(TASKS), patch.dict(KERNELS):  # a page may add one
        for block in blocks(page):
            exec(compile(block, page.name, "exec"), namespace)


def test_the_readme_has_code() -> None:
    assert len(blocks(ROOT / "README.md")) >= 3


@pytest.mark.parametrize("page", PAGES + OTHERS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_readme_quotes_its_benchmark() -> None:
    """Every row of the README's table says what the file says, rounded."""
    result = OpsBenchResult.from_json(json.loads((ROOT / "benchmarks" / "ops-cpu.json").read_text()))
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert [int(length) for length, _ in rows] == list(result.config.lengths)
    for length, rest in rows:
        chunked, sdpa = result.at("chunked", int(length)), result.at("sdpa", int(length))
        quoted = [cell.strip() for cell in rest.split("|")]
        assert chunked.timing is not None
        assert quoted[0] == f"{chunked.timing.median_seconds * 1e3:.0f} ms"
        assert quoted[3] == f"{(chunked.peak_bytes or 0) / 2**20:.0f} MiB"
        if sdpa.timing is not None:
            assert quoted[1] == f"{sdpa.timing.median_seconds * 1e3:.0f} ms"
            assert quoted[2] == f"{chunked.speedup_over_sdpa:.1f}×"
            assert quoted[4] == f"{(sdpa.peak_bytes or 0) / 2**20:.0f} MiB"


def test_the_readme_quotes_decoding_on_a_cpu() -> None:
    result = DecodeBenchResult.from_json(json.loads((ROOT / "benchmarks" / "decode-cpu.json").read_text()))
    found = {each.context: each.timing for each in result.measurements}
    state, *others = (timing.median_seconds * 1e3 for timing in found.values() if timing is not None)
    said = (
        "a token takes {:.1f} ms whatever came before it. SDPA with a cache, 12 heads of 64, takes {:.1f} ms after 64 "
        "tokens, {:.1f} ms after 2048 and {:.1f} ms after 8192"
    )
    assert list(found) == [None, 64, 2048, 8192]
    assert said.format(state, *others) in prose("README.md")


def test_the_readme_quotes_its_gpu_benchmark() -> None:
    result = OpsBenchResult.from_json(json.loads((ROOT / "benchmarks" / "ops-h200.json").read_text()))
    rows = re.findall(r"^\| (\d+) tokens \| (.* ms .*) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert len(rows) >= 4
    for length, rest in rows:
        cells = [cell.strip() for cell in rest.split("|")]
        ours, *others = (result.at(name, int(length), "both").timing for name in ("triton", "sdpa", "parallel_rebased"))
        assert ours is not None
        assert cells[0] == f"{ours.median_seconds * 1e3:.2f} ms"
        for other, quoted, ratio in zip(others, cells[1:3], cells[3:], strict=True):
            if other is None:
                assert (quoted, ratio) == ("not run", "")
            else:
                assert quoted == f"{other.median_seconds * 1e3:.2f} ms"
                assert ratio == f"{other.median_seconds / ours.median_seconds:.1f}×"


def prose(page: str) -> str:
    """The page as one line, so that sentences are found wherever their lines are broken."""
    return " ".join((ROOT / page).read_text().split())


def test_the_readme_quotes_its_benchmark_of_the_language_models_heads() -> None:
    result = OpsBenchResult.from_json(json.loads((ROOT / "benchmarks" / "ops-h200-lm.json").read_text()))
    config, said = result.config, prose("README.md")
    assert (
        f"{config.num_heads} of F = {config.feature_dim} and D = {config.head_dim} against SDPA's "
        f"{config.sdpa_heads} of {config.sdpa_head_dim}"
    ) in said
    over_sdpa: dict[int, float] = {}
    for length in config.lengths:
        ours, sdpa = (result.at(name, length, "both") for name in ("triton", "sdpa"))
        assert ours.timing is not None
        assert sdpa.timing is not None
        over_sdpa[length] = sdpa.timing.median_seconds / ours.timing.median_seconds
        assert f"{(ours.peak_bytes or 0) / (sdpa.peak_bytes or 1):.2f}" == "1.35"
    assert "always with 1.35 times SDPA's memory" in said
    assert ", ".join(f"{ratio:.2f}× at {length}" for length, ratio in over_sdpa.items()) in said
    slower = [length for length, ratio in over_sdpa.items() if ratio < 1]
    faster = [length for length, ratio in over_sdpa.items() if ratio > 1]
    assert max(slower) < min(faster)
    assert f"slower than SDPA up to {max(slower)} tokens and faster from {min(faster)} on" in said


def quoted_rates(num_columns: int) -> dict[int, list[str]]:
    """Rows of the README's table with so many columns that begins with tokens per second."""
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (\d+) tokens \| (\d+,\d{3} \| .*) \|$", text, flags=re.MULTILINE)
    cells = {
        int(length): [cell.strip() for cell in rest.split("|")]
        for length, rest in rows
        if rest.count("|") + 2 == num_columns
    }
    assert len(cells) == 3
    return cells


def rates(*measurements: Any, digits: int) -> list[str]:
    return [f"{round(each.tokens_per_second, -digits):,.0f}" for each in measurements]


def test_the_readme_quotes_its_benchmark_of_training() -> None:
    result = TrainBenchResult.from_json(json.loads((ROOT / "benchmarks" / "lm-train-h200.json").read_text()))
    found = {(each.model, each.length): each for each in result.measurements}
    for length, cells in quoted_rates(5).items():
        ours, based, attention = (found[name, length] for name in ("rebased", "based", "attention"))
        assert cells[:3] == rates(ours, based, attention, digits=3)
        assert cells[3].startswith(f"{ours.speedup:.2f}×")


def test_the_readme_quotes_the_memory_of_training() -> None:
    result = TrainBenchResult.from_json(json.loads((ROOT / "benchmarks" / "lm-train-h200.json").read_text()))
    peaks = {
        model: [(each.peak_bytes or 0) / 2**30 for each in result.measurements if each.model == model]
        for model in ("rebased", "based", "attention")
    }
    said = prose("README.md")
    for model, name in (("rebased", "ReBased"), ("based", "Based"), ("attention", "Attention")):
        first, second, third = peaks[model]
        assert f"{first:.1f}, {second:.1f} and {third:.1f} GiB with {name}" in said
    (ratio,) = {f"{ours / theirs:.1f}" for ours, theirs in zip(peaks["rebased"], peaks["attention"], strict=True)}
    assert f"ReBased takes {ratio} times as much as Attention at each of the three lengths" in said


def test_the_readme_quotes_what_remains_of_generation() -> None:
    """Reading Attention's cache once, at the rate that was measured, against a whole step of ReBased."""
    ops = OpsBenchResult.from_json(json.loads((ROOT / "benchmarks" / "ops-h200.json").read_text()))
    result = GenerateBenchResult.from_json(json.loads((ROOT / "benchmarks" / "lm-generate-h200.json").read_text()))
    found = {(each.model, each.context): each for each in result.measurements}
    assert ops.rates is not None
    rate = ops.rates.bytes_per_second
    reading = {length: (found["attention", length].held_bytes or 0) / rate for length in (8192, 32768)}
    steps = {
        length: result.config.batch_size / (found["rebased", length].tokens_per_second or 0) for length in (8192, 32768)
    }
    said = prose("README.md")
    assert {f"{seconds * 1e3:.1f} ms" for seconds in steps.values()} == {"1.7 ms"}
    assert "ours are replayed from a CUDA graph, 1.7 ms." in said
    assert f"once at the card's {rate / 1e12:.2f} TB/s would take {reading[8192] * 1e3:.1f} ms at 8192 tokens" in said
    assert f"and {reading[32768] * 1e3:.0f} ms at 32,768" in said
    assert f"{reading[8192] / steps[8192]:.1f}× and {reading[32768] / steps[32768]:.0f}× remain" in said


def test_the_benchmarks_page_quotes_the_limit() -> None:
    result = OpsBenchResult.from_json(json.loads((ROOT / "benchmarks" / "ops-h200.json").read_text()))
    (limit,) = (each for each in result.limits if (each.length, each.passes) == (2048, "forward"))
    assert result.rates is not None
    said = prose("benchmarks/README.md")
    assert (
        f"are {limit.num_bytes / 1e6:.0f} MB, {limit.memory_seconds * 1e3:.2f} ms at "
        f"{result.rates.bytes_per_second / 1e12:.2f} TB/s"
    ) in said
    assert (
        f"products are {limit.flops / 1e9:.1f} GFLOP, {limit.compute_seconds * 1e3:.2f} ms at "
        f"{result.rates.flops_per_second / 1e12:.0f} TFLOP/s"
    ) in said


def test_the_results_page_quotes_the_recipe() -> None:
    folder = ROOT / "results" / "recipe"
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("runs/*-lr0.003-s*/result.json"))]
    accuracies = [f"{result['accuracy']:.3f}" for result in results]
    assert len(accuracies) == 5
    said = prose("results/README.md")
    assert f"{', '.join(accuracies[:-1])} and {accuracies[-1]}" in said
    (mean,) = re.findall(r"0\.003 of 1 +(0\.\d{3} ± 0\.\d{3}) +5 ", (folder / "log.txt").read_text())
    assert f"mean {mean}" in said


def test_the_readme_quotes_its_benchmark_of_generation() -> None:
    result = GenerateBenchResult.from_json(json.loads((ROOT / "benchmarks" / "lm-generate-h200.json").read_text()))
    found = {(each.model, each.context): each for each in result.measurements}
    for context, cells in quoted_rates(7).items():
        ours, based, attention = (found[name, context] for name in ("rebased", "based", "attention"))
        assert cells[:3] == rates(ours, based, attention, digits=2)
        assert cells[3] == f"{ours.speedup:.1f}×"
        assert cells[4] == f"{(ours.held_bytes or 0) / 2**20:.0f} MiB"
        assert float(cells[5].removesuffix(" GiB")) == pytest.approx((attention.held_bytes or 0) / 2**30, rel=0.03)


def test_the_backends_page_quotes_its_benchmarks() -> None:
    files = [ROOT / "benchmarks" / f"auto-{name}.json" for name in ("h200-bfloat16", "cpu")]
    gpu, cpu = (OpsBenchResult.from_json(json.loads(file.read_text())) for file in files)
    text = (ROOT / "docs" / "backends.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text, flags=re.MULTILINE)
    assert len(rows) == 4
    for length, rest in rows:
        found = [(gpu, name) for name in ("reference", "chunked", "triton")] + [(cpu, "reference"), (cpu, "chunked")]
        for (result, name), quoted in zip(found, rest.split("|"), strict=True):
            timing = result.at(name, int(length), "both").timing
            assert timing is not None
            assert abs(timing.median_seconds * 1e3 - float(quoted)) <= (0.06 if "." in quoted else 0.5)


def test_the_docs_quote_table_1() -> None:
    """Our numbers and, in brackets, the paper's."""
    findings = json.loads((ROOT / "results" / "small" / "table1.json").read_text())
    cells = {(cell["stack"], cell["d_model"]): cell for cell in findings["data"]["cells"] if cell["seq_len"] == 256}
    text = (ROOT / "docs" / "reproduction.md").read_text()
    for stack, name in TABLE_1_NAMES.items():
        (row,) = re.findall(rf"^\| {re.escape(name)} \| (0\.\d\d ± .*) \|$", text, flags=re.MULTILINE)
        for size, quoted in zip((16, 24, 32, 48), row.split(" | "), strict=True):
            ours = cells.get((stack, size))
            shown = f"{ours['mean']:.2f} ± {ours['sd']:.2f}" if ours else "not finished"
            theirs = TABLE_1[stack][256][size]
            assert quoted == f"{shown} ({theirs[0]:.2f} ± {theirs[1]:.2f})"
    minutes = findings["seconds"] / 60
    assert f"{findings['num_finished']} runs in {minutes:.0f} minutes of the card" in prose("docs/reproduction.md")


def test_the_docs_quote_the_worst_runs() -> None:
    findings = json.loads((ROOT / "results" / "small" / "figure4.json").read_text())
    lowest = {
        curve["stack"]: curve["lowest"]
        for curve in findings["data"]["curves"]
        if (curve["seq_len"], curve["d_model"]) == (256, 48)
    }
    said = "The worst of its ten runs has an accuracy of {:.3f}. Of Based's the worst has {:.3f}, of (γx+β)²'s {:.3f}"
    worst = (lowest.pop(stack) for stack in ("rebased", "based", "gamma_beta_x2"))
    assert said.format(*worst) in prose("docs/reproduction.md")
    assert max(lowest.values()) < STUCK
    recipe = (run.parent for run in (ROOT / "results" / "recipe" / "runs").glob("*/result.json"))
    accuracies = {
        json.loads((run / "config.json").read_text())["seed"]: json.loads((run / "result.json").read_text())["accuracy"]
        for run in recipe
    }
    seed = min(accuracies, key=accuracies.__getitem__)
    assert f"at 3e-3 and with seed {seed}, has {accuracies[seed]:.3f}" in prose("docs/reproduction.md")


def test_the_readme_quotes_table_1() -> None:
    findings = json.loads((ROOT / "results" / "small" / "table1.json").read_text())
    cells = [cell for cell in findings["data"]["cells"] if cell["seq_len"] == 256]
    means = {
        stack: statistics.fmean(cell["mean"] for cell in cells if cell["stack"] == stack) for stack in TABLE_1_NAMES
    }
    text = (ROOT / "README.md").read_text()
    assert f"| | {' | '.join(TABLE_1_NAMES.values())} |" in text
    assert f"| ours | {' | '.join(f'{means[stack]:.2f}' for stack in TABLE_1_NAMES)} |" in text
    assert f"| the paper's | {' | '.join(f'{TABLE_1_MEANS[stack][256]:.2f}' for stack in TABLE_1_NAMES)} |" in text
    better = [each for each in findings["data"]["comparisons"]["256"]["tuned"] if each["verdict"].endswith("better")]
    assert {each["verdict"][0] == "b" and (each["b"], each["a"]) for each in better} == {
        ("rebased", "based"),
        ("rebased", "gamma_x2"),
        ("gamma_beta_x2", "gamma_x2"),
    }
    every = [(name, each) for name, outcome in findings["data"]["comparisons"]["256"].items() for each in outcome]
    corrected = zip(every, holm(np.array([each["p_value"] for _, each in every])), strict=True)
    firm = [(each["a"], each["b"]) for (name, each), p in corrected if name == "tuned" and p < ALPHA]
    assert (len(every), firm) == (45, [("gamma_x2", "rebased")])
    tried = {
        stack: [x for cell in cells if cell["stack"] == stack and cell["d_model"] >= 24 for x in _accuracies(cell)]
        for stack in means
    }
    stuck = {stack: sum(x < STUCK for x in accuracies) for stack, accuracies in tried.items()}
    assert {len(accuracies) for accuracies in tried.values()} == {30}
    assert (stuck.pop("gamma_x2"), stuck.pop("x2"), max(stuck.values())) == (17, 11, 3)
    assert "(17 and 11 of 30 runs from d = 24 on; the others at most 3)" in prose("README.md")


def _accuracies(cell: dict[str, Any]) -> list[float]:
    """Of all learning rates and seeds."""
    return [accuracy for by_seed in cell["by_rate"].values() for accuracy in by_seed.values()]


def test_the_docs_quote_figure_1() -> None:
    findings = json.loads((ROOT / "results" / "small" / "figure1.json").read_text())
    cells = {(cell["stack"], cell["seq_len"], cell["d_model"]): cell["mean"] for cell in findings["data"]["cells"]}
    text = (ROOT / "docs" / "reproduction.md").read_text()
    for stack, name in FIGURE_1_NAMES.items():
        means = [cells.get((stack, length, size)) for length in (128, 256, 512) for size in (64, 128)]
        shown = ["not run" if mean is None else f"{mean:.2f}" for mean in means]
        assert f"| {name} | {' | '.join(shown)} |" in text
    assert findings["num_finished"] == findings["num_runs"]
    assert f"all {findings['num_runs']} runs, {findings['seconds'] / 60:.0f} minutes of the card" in text
    assert f"without {findings['num_untimed']} runs whose time was not recorded" in text


def test_the_docs_quote_figure_10() -> None:
    findings = json.loads((ROOT / "results" / "small" / "figure10.json").read_text())
    text = (ROOT / "docs" / "reproduction.md").read_text()
    for kind, runs in (("", findings["data"]["runs"]), (", no decay", findings["data"]["without_decay"])):
        for run in runs:
            gammas = [run["watched"][f"blocks.1.mixer.gammas.{i}"][-1][0] for i in (0, 1)]
            row = (
                f"{run['seq_len']}, {run['d_model']}{kind} | {run['learning_rate']} | {run['epochs'][-1]} | "
                f"{gammas[0]:.3f}, {gammas[1]:.3f} | {run['decay_alone'][-1]:.3f}"
            )
            assert f"| {row} |" in text
    assert findings["num_finished"] == findings["num_runs"]


def test_the_docs_count_the_papers_runs() -> None:
    text = (ROOT / "docs" / "reproduction.md").read_text()
    rows = re.findall(r"^\| `(\w+)`.*? \| [^|]* \| (\d+) \|", text, flags=re.MULTILINE)
    assert dict(rows) == {
        experiment.name: str(len(experiment.configs("paper")))
        for experiment in EXPERIMENTS.values()
        if experiment.configs("paper")
    }


def test_the_docs_quote_table_3() -> None:
    """Our numbers and, in brackets, the paper's."""
    findings = json.loads((ROOT / "results" / "small" / "table3.json").read_text())
    found = {model["stack"]: model for model in findings["data"]["models"] if model["d_model"] == 64}
    text = (ROOT / "docs" / "reproduction.md").read_text()
    for stack, name in TABLE_3_NAMES.items():
        iou, accuracy, at_value = (
            f"{found[stack][measure]['mean']:.3f} ± {found[stack][measure]['sd']:.3f}"
            for measure in ("iou", "accuracy", "at_value")
        )
        theirs = TABLE_3[stack.removeprefix("copy_")]
        assert f"| {name} | {iou} ({theirs[0]:.3f}) | {accuracy} ({theirs[1]:.3f}) | {at_value} |" in text
    (difference,) = (each["iou"] for each in findings["data"]["differences"] if each["d_model"] == 64)
    assert f"by {difference['mean']:.3f} ± {difference['sd']:.3f} (the paper: 0.016)" in text
    seconds = f"{findings['num_finished']} runs in {findings['seconds']:.0f} seconds of the card"
    assert seconds in prose("docs/reproduction.md")


def test_the_docs_quote_table_2() -> None:
    runs = json.loads((ROOT / "results" / "small" / "table2.json").read_text())["data"]["runs"]
    text = (ROOT / "docs" / "reproduction.md").read_text()
    for family, name in TABLE_2_NAMES.items():
        mine = [run["perplexity"] for run in runs if run["model"] == f"{family}-medium"]
        columns = ([each[kind] for each in mine] for kind in ("all", "ar", "non_ar"))
        shown = (f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}" for values in columns)
        assert f"| {name} ({len(mine)} seeds) | {' | '.join(shown)} |" in text


def test_the_docs_say_what_it_cost() -> None:
    """Minutes of each experiment, and how many runs have none."""
    text = (ROOT / "docs" / "reproduction.md").read_text()
    rows = re.findall(r"^\| (`.*) \| ([\d.]+)(.*) \| (\d+) of (\d+) \|$", text, flags=re.MULTILINE)
    costs = {name: row for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert costs.keys() == {experiment.name for experiment in EXPERIMENTS.values() if experiment.configs("small")}
    for name, (_, minutes, untimed, finished, asked) in costs.items():
        findings = json.loads((ROOT / "results" / "small" / f"{name}.json").read_text())
        assert minutes == f"{findings['seconds'] / 60:.1f}"
        assert (untimed != "") == (findings.get("num_untimed", 0) > 0)
        assert int(finished) == findings["num_finished"]
        assert int(asked) in {findings["num_runs"], len(EXPERIMENTS[name].configs("small"))}
    ledger = map(json.loads, (ROOT / "results" / "runs.jsonl").read_text().splitlines())
    together = sum(run["seconds"] or 0 for run in ledger) / 60  # runs that several experiments share count once
    assert f"Together {together:.0f} minutes, language models apart" in text
