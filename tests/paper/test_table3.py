"""Table 3 with Figures 5, 8 and 9: maps by hand, and a tiny grid from training to pictures."""

import json
import math
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rebased.analysis.pages import Section, Table
from rebased.analysis.welch import welch_p
from rebased.models import LanguageModel, preset
from rebased.paper.conduct import conduct, sweep_folder
from rebased.paper.experiment import Experiment, Material
from rebased.paper.figure9 import FIGURE9
from rebased.paper.findings import Findings, findings_path
from rebased.paper.map_measures import measure_maps, show_maps, value_positions
from rebased.paper.map_runs import GRIDS, MODELS, best_runs, kept_runs
from rebased.paper.table3 import MEASURES, TABLE3
from rebased.runs import Run, find_runs
from rebased.tasks import mqar
from rebased.training.engines import make_engine
from rebased.training.events import Event
from rebased.training.folders import name_of

# ---- Models made by hand ----

NUM_PAIRS = 3
EXAMPLES = mqar(20, 12, NUM_PAIRS, vocab_size=16, seed=5)
"""Keys are 1 to 7, values 8 to 15."""


def by_hand(*, sharpness: float) -> LanguageModel:
    """A model whose second layer looks for a value after the query's own key, the more decidedly the sharper.

    Features 0 to 7 say which key a token is, feature 8 that it is a value; the first layer adds the token before. Keys
    are like queries in features 0 to 7, and a bias of the queries has them prefer values, which outweighs that the key
    itself, in its own place, is still more like the query.
    """
    config = preset("mqar-copy_attention", d_model=12, seq_len=12, vocab_size=16)
    model = LanguageModel(config).eval()
    mixer = model.blocks[1].mixer
    with torch.no_grad():
        model.position_embedding.weight.zero_()
        model.embedding.weight.zero_()
        model.embedding.weight[1:8, 1:8] = torch.eye(7)
        model.embedding.weight[8:, 8] = 1.0
        is_key = torch.zeros(12)
        is_key[:8] = 1.0
        mixer.q_proj.weight.copy_(sharpness * torch.diag(is_key))
        mixer.q_proj.bias[8] = 4 * sharpness
        mixer.k_proj.weight.copy_(torch.eye(12))
    return model


def test_values_are_where_they_are() -> None:
    found = value_positions(EXAMPLES, NUM_PAIRS)
    assert torch.equal(EXAMPLES.inputs.gather(1, found), EXAMPLES.answers)
    assert (found < 2 * NUM_PAIRS).all()


def test_attention_that_is_right() -> None:
    found = measure_maps(by_hand(sharpness=100), EXAMPLES, num_pairs=NUM_PAIRS)
    assert found["iou"] > 0.999
    assert found["at_value"] > 0.999
    assert found["entropy"] < 0.001


def test_attention_that_knows_nothing() -> None:
    """Uniform: with t + 1 tokens to look at, each gets 1 / (t + 1)."""
    found = measure_maps(by_hand(sharpness=0), EXAMPLES, num_pairs=NUM_PAIRS)
    shares = 1 / (EXAMPLES.positions.double() + 1)
    assert found["iou"] == pytest.approx(float(shares.sum() / (1 + (2 * NUM_PAIRS - 1) * shares).sum()))
    assert found["at_value"] == pytest.approx(float(shares.mean()))
    assert found["entropy"] == pytest.approx(1)


def test_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure_maps(by_hand(sharpness=1), EXAMPLES, num_pairs=NUM_PAIRS)
    monkeypatch.setattr("rebased.paper.map_measures.BATCH_SIZE", 7)
    assert measure_maps(by_hand(sharpness=1), EXAMPLES, num_pairs=NUM_PAIRS) == pytest.approx(whole)


def test_accuracy_is_that_of_the_logits() -> None:
    model = by_hand(sharpness=1)
    with torch.no_grad():
        right = model(EXAMPLES.inputs).argmax(dim=2).gather(1, EXAMPLES.positions) == EXAMPLES.answers
    expected = float(right.double().mean())
    assert measure_maps(model, EXAMPLES, num_pairs=NUM_PAIRS)["accuracy"] == pytest.approx(expected)


def test_shown_maps() -> None:
    (shown,) = show_maps(by_hand(sharpness=100), EXAMPLES[:1], num_pairs=NUM_PAIRS)
    assert shown["truth"] == value_positions(EXAMPLES, NUM_PAIRS)[0].tolist()
    assert np.argmax(shown["map"], axis=1).tolist() == shown["truth"]
    assert np.shape(shown["map"]) == (NUM_PAIRS, 2 * NUM_PAIRS)
    assert len(shown["last_query"]) == EXAMPLES.positions[0, -1] + 1
    assert sum(shown["last_query"]) == pytest.approx(1, abs=1e-4)
    assert np.argmax(shown["last_query"]) == shown["truth"][-1]


# ---- A tiny grid ----

TINY = {
    "stack": list(MODELS),
    "seq_len": 16,
    "d_model": [12, 24],
    "task_options": {"num_pairs": 4},
    "learning_rate": [1e-3, 1e-2],
    "seed": [42, 43],
    "vocab_size": 32,
    "num_train": 64,
    "num_test": 32,
    "batch_size": 32,
    "epochs": 1,
}


def tiny(experiment: Experiment) -> Experiment:
    return replace(experiment, grids={scale: {"run": TINY} for scale in experiment.grids})


def carry_out(experiment: Experiment, out: Path) -> Findings:
    engine = make_engine(device="cpu")
    findings, failures = conduct(tiny(experiment), "smoke", out, engine, device="cpu", report=lambda _: None)
    assert failures == ()
    return findings


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with Table 3 in them; not to be changed."""
    out = tmp_path_factory.mktemp("paper")
    carry_out(TABLE3, out)
    return out


@pytest.fixture
def out(trained: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return shutil.copytree(trained, tmp_path / "out")


def remove_weights(out: Path) -> None:
    for weights in out.rglob("weights.safetensors"):
        weights.unlink()


def material_of(out: Path) -> Material:
    runs = tuple(find_runs(sweep_folder(out).path))
    return Material(scale="smoke", runs=runs, out=out, device="cpu")


def test_findings(trained: Path) -> None:
    findings = Findings.read(findings_path(trained, "smoke", "table3"))
    assert findings.is_complete
    assert findings.num_runs == 24
    data = findings.data
    assert data == json.loads(json.dumps(data))
    assert data["num_examples"] == 200
    assert [(model["d_model"], model["stack"]) for model in data["models"]] == [
        (width, stack) for width in TINY["d_model"] for stack in MODELS
    ]
    assert len(data["runs"]) == 12  # of each stack and width, the seeds of its best learning rate
    for model in data["models"]:
        entries = [
            entry
            for entry in data["runs"].values()
            if (entry["stack"], entry["d_model"]) == (model["stack"], model["d_model"])
        ]
        assert [entry["seed"] for entry in entries] == model["seeds"] == [42, 43]
        assert {entry["learning_rate"] for entry in entries} == {model["learning_rate"]}
        assert ["examples" in entry for entry in entries] == [model["d_model"] == 24, False]
        for measure in MEASURES:
            assert model[measure]["mean"] == pytest.approx(np.mean([entry[measure] for entry in entries]))
            assert 0 <= model[measure]["mean"] <= 1
    assert [(each["d_model"], each["seeds"]) for each in data["differences"]] == [(12, [42, 43]), (24, [42, 43])]


def test_entries_are_of_the_weights_on_disk(trained: Path) -> None:
    found = TABLE3.measure(replace(material_of(trained), out=trained / "elsewhere"))
    assert found == Findings.read(findings_path(trained, "smoke", "table3")).data


def test_what_was_measured_outlives_the_weights(out: Path) -> None:
    before = Findings.read(findings_path(out, "smoke", "table3")).data
    remove_weights(out)
    assert TABLE3.measure(material_of(out)) == before


def test_without_weights_and_findings(out: Path) -> None:
    remove_weights(out)
    findings_path(out, "smoke", "table3").unlink()
    for experiment in (TABLE3, FIGURE9):
        with pytest.raises(ValueError, match=r"the run copy_\w+-d\d+-L16-\S+ has no weights.* train it again"):
            experiment.measure(material_of(out))


def test_a_run_trained_anew_is_measured_anew(out: Path) -> None:
    material = material_of(out)
    kept = kept_runs(material, "table3")
    name, *others = kept
    runs = tuple(
        replace(run, result=run.result | {"accuracy": 0.987}) if run.folder.name == name else run
        for run in material.runs
    )
    assert list(kept_runs(replace(material, runs=runs), "table3")) == others


def test_other_widths_do_not_replace_what_was_found(out: Path) -> None:
    """Nothing else is left of runs whose weights are gone; that is said before anything is trained."""
    path, both = findings_path(out, "smoke", "table3"), tiny(TABLE3)
    path.unlink()
    wide = replace(both, grids={scale: {"run": TINY | {"d_model": 24}} for scale in both.grids})
    kept, _ = conduct(wide, "smoke", out, None, device="cpu", report=lambda _: None)
    found = path.read_bytes()
    for config in wide.configs("smoke"):
        shutil.rmtree(sweep_folder(out).run(config))
    again, _ = conduct(both, "smoke", out, None, device="cpu", report=lambda _: None)
    assert again.data == json.loads(json.dumps(kept.data))
    narrow = {name_of(config) for config in both.configs("smoke") if config.d_model == 12}
    engine, events = make_engine(device="cpu"), list[Event]()
    with pytest.raises(ValueError, match=r"findings of 6 runs that would be lost, such as copy_attention-d24-"):
        conduct(both, "smoke", out, engine, device="cpu", report=events.append, chosen=narrow)
    assert not events
    assert path.read_bytes() == found


def test_section(trained: Path) -> None:
    section = TABLE3.present(Findings.read(findings_path(trained, "smoke", "table3")).data)
    assert [picture.name for picture in section.pictures] == ["figure5", "figure8"]
    assert [len(picture.figure.axes) for picture in section.pictures] == [4 + 1, 8 + 1]  # and a colour bar
    means, differences, *of_the_widest = tables_of(section)
    captions = [table.caption for table in (means, of_the_widest[0])]
    assert captions == ["Second layers, d = 12, 2 seeds", "Second layers, d = 24, 2 seeds"]
    assert len(of_the_widest) == 2
    rows = [[cell.text for cell in row] for row in means.rows]
    assert [row[0] for row in rows[::2]] == list(MODELS.values())
    assert rows[1::2] == [
        ["the paper's", "0.999", "1.000", "", ""],
        ["the paper's", "0.157", "0.956", "", ""],
        ["the paper's", "0.173", "0.957", "", ""],
    ]
    assert [row[0].text for row in differences.rows] == list(MEASURES.values())
    assert any("With these 2 seeds the least p that this test can give is 0.5" in str(part) for part in section.parts)


def test_a_model_that_is_missing(trained: Path) -> None:
    material = material_of(trained)
    runs = tuple(run for run in material.runs if run.config["stack"] != "copy_rebased")
    data = TABLE3.measure(replace(material, runs=runs))
    assert data["differences"] == []
    section = TABLE3.present(data)
    means, _ = tables_of(section)
    assert [cell.text for cell in means.rows[4]] == ["ReBased", *["not run"] * 4]
    assert len(section.pictures[0].figure.axes) == 3 + 1


def test_maps_are_of_the_widest_alone(trained: Path) -> None:
    """A narrower model was the widest when it was looked at."""
    material = material_of(trained)
    data = TABLE3.measure(material)
    name = next(name for name, entry in data["runs"].items() if "examples" not in entry and entry["d_model"] == 12)
    examples = next(entry["examples"] for entry in data["runs"].values() if "examples" in entry)
    data["runs"][name]["examples"] = [example | {"map": []} for example in examples]
    data["runs"] = {key: data["runs"][key] for key in sorted(data["runs"], key=lambda key: key == name)}  # it is last
    assert all(image.size for axes in TABLE3.present(data).pictures[0].figure.axes for image in _images(axes))


def _images(axes: Any) -> list[Any]:
    return [image.get_array() for image in axes.images]


def test_nothing_has_finished(tmp_path: Path) -> None:
    for experiment in (TABLE3, FIGURE9):
        data = experiment.measure(Material(scale="smoke", runs=(), out=tmp_path, device="cpu"))
        assert experiment.present(data).parts == ("No run has finished.",)


# ---- Figure 9 ----


def test_figure9_is_of_table3s_first_examples(out: Path) -> None:
    """Whether they are taken from its findings, measured, or were measured before."""
    table3 = findings_path(out, "smoke", "table3")
    shown = {name: run for name, run in Findings.read(table3).data["runs"].items() if "examples" in run}
    from_table3 = carry_out(FIGURE9, out).data
    assert from_table3["runs"].keys() == shown.keys()
    for name, entry in from_table3["runs"].items():
        example = shown[name]["examples"][0]
        assert (entry["scores"], entry["truth"]) == (example["last_query"], example["truth"][-1])
    table3.unlink()
    assert FIGURE9.measure(replace(material_of(out), out=out / "elsewhere")) == from_table3
    remove_weights(out)
    assert FIGURE9.measure(material_of(out)) == from_table3


def test_figure9s_section(trained: Path) -> None:
    section = FIGURE9.present(FIGURE9.measure(material_of(trained)))
    (picture,) = section.pictures
    assert picture.name == "figure9"
    assert [panel.get_title() for panel in picture.figure.axes] == list(MODELS.values())
    (table,) = tables_of(section)
    assert [row[0].text for row in table.rows] == list(MODELS.values())


def test_figure9s_table_by_hand() -> None:
    entry = {"stack": "copy_based", "num_pairs": 1, "truth": 1, "scores": [0.3, 0.5, 0.15, 0.05]}
    (table,) = tables_of(FIGURE9.present({"runs": {"a run": entry}}))
    assert [cell.text for cell in table.rows[0]] == ["Based", "0.500", "0.300", "1 of 3"]  # an even share is 0.25


# ---- What is said, and of which runs ----


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([0.1], "With this one seed the least p that this test can give is 1: no difference can be shown at 0.05"),
        ([0.1] * 5, "With these 5 seeds the least p that this test can give is 0.062: no difference"),
        (
            [0.1] * 5 + [0.0],
            "A difference of the two is not shown by 6 seeds (p = 0.062; so few are not level that it cannot be less "
            "than 0.062).",
        ),
        ([0.1, 0.2, 0.1, 0.1, 0.2, 0.1], "A difference of the two is shown by 6 seeds (p = 0.031)."),
        ([0.1, -0.2, 0.1, -0.1, 0.2, 0.1], "A difference of the two is not shown by 6 seeds"),
    ],
)
def test_only_what_numbers_can_show_is_said(differences: list[float], said: str) -> None:
    runs = tuple(
        _run(stack, seed, accuracy)
        for seed, difference in enumerate(differences)
        for stack, accuracy in (("copy_based", 0.5), ("copy_rebased", 0.5 + difference))
    )
    kept = {run.folder.name: _entry(run) for run in runs}
    data = _measured_from(kept, runs)
    section = TABLE3.present(data)
    sentence = section.parts[3]
    assert isinstance(sentence, str)
    assert said in sentence
    assert f"here the difference is {np.mean(differences):+.3f}" in sentence


def _run(
    stack: str, seed: int, accuracy: float, *, rate: float = 1e-3, finished: str = "epochs", width: int = 12
) -> Run:
    config = TINY | {"stack": stack, "seed": seed, "learning_rate": rate, "d_model": width}
    result = {"accuracy": accuracy, "epochs": 1, "finished": finished}
    return Run(Path(f"{stack}-d{width}-{rate}-{seed}"), config, (), result)


def _entry(run: Run) -> dict[str, Any]:
    """With the accuracy for each measure."""
    accuracy = run.result["accuracy"]
    example = {"truth": [1], "map": [[0.25, 0.75]], "last_query": [0.25, 0.75, 0.0]}
    sizes = {"seq_len": 16, "num_pairs": 1, "epochs": 1}
    same = {name: run.config[name] for name in ("stack", "seed", "learning_rate", "d_model")}
    shown = {"examples": [example] * 3, "fingerprint": str(accuracy)}
    return same | sizes | shown | dict.fromkeys(MEASURES, accuracy)


def _measured_from(kept: dict[str, Any], runs: tuple[Run, ...]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rebased.paper.table3.kept_runs", lambda *_: kept)
        return TABLE3.measure(Material(scale="smoke", runs=runs, out=Path("nowhere"), device="cpu"))


def test_runs_that_diverged_are_not_looked_at() -> None:
    """So the rate at which one did lacks a seed, and another is the best."""
    runs = [
        _run("copy_based", 0, 0.9, rate=1e-2),
        _run("copy_based", 1, 0.9, rate=1e-2, finished="diverged"),
        _run("copy_based", 0, 0.5),
        _run("copy_based", 1, 0.5),
    ]
    assert best_runs(runs) == {("copy_based", 12): (runs[2], runs[3])}


def test_grids() -> None:
    """Figure 9's runs are some of Table 3's."""
    counts = {scale: (len(TABLE3.configs(scale)), len(FIGURE9.configs(scale))) for scale in GRIDS}
    assert counts == {"smoke": (12, 12), "small": (36, 12), "paper": (180, 60)}
    for scale in GRIDS:
        assert set(map(repr, FIGURE9.configs(scale))) <= set(map(repr, TABLE3.configs(scale)))
    assert {config.d_model for config in FIGURE9.configs("paper")} == {64}
    for config in TABLE3.configs("paper"):
        assert (config.seq_len, config.task_options, config.vocab_size) == (128, {"num_pairs": 32}, 8192)
        assert (config.dtype, config.epochs) == ("bfloat16", 64)
        assert config.model().layers[0].mixer == "previous_token"


def tables_of(section: Section) -> list[Table]:
    return [part for part in section.parts if isinstance(part, Table)]


def test_pictures_show_small_attention() -> None:
    """On a root scale a hundredth is a tenth of the way."""
    runs = (_run("copy_based", 0, 0.5),)
    section = TABLE3.present(_measured_from({runs[0].folder.name: _entry(runs[0])}, runs))
    truth, attention, _ = section.pictures[0].figure.axes
    assert truth.images[0].get_array().tolist() == [[0, 1]]
    assert attention.images[0].get_array().tolist() == [[0.25, 0.75]]
    assert attention.images[0].norm(0.01) == pytest.approx(math.sqrt(0.01))


def _verdicts(*models: Sequence[float]) -> list[str]:
    """Of softmax attention above the others, and ReBased above Based, by IoU of each seed."""
    runs = tuple(
        _run(stack, seed, x) for stack, values in zip(MODELS, models, strict=False) for seed, x in enumerate(values)
    )
    return [
        claim.verdict
        for claim in TABLE3.present(_measured_from({run.folder.name: _entry(run) for run in runs}, runs)).claims
    ]


SOMEWHAT_LOW = tuple(x - 0.4 for x in (0.99, 0.98, 0.97, 0.99, 0.98, 0.97))
HIGH, LOW = (0.99, 0.98, 0.97, 0.99, 0.98, 0.97), (0.11, 0.12, 0.13, 0.11, 0.12, 0.14)


@pytest.mark.parametrize(
    ("models", "verdicts"),
    [
        ((HIGH, LOW, HIGH), ["not shown", "agrees"]),
        ((HIGH, LOW, LOW), ["agrees", "not shown"]),
        ((LOW, HIGH, LOW), ["not shown", "differs"]),
        ((LOW, HIGH, HIGH), ["differs", "not shown"]),
        ((HIGH, SOMEWHAT_LOW, SOMEWHAT_LOW), ["differs", "not shown"]),
        (([0.9, 0.9], [0.1, 0.1], [0.1, 0.1]), ["not shown", "not shown"]),
        ((HIGH[:1], LOW[:1], LOW[:1]), ["not shown", "not shown"]),
        ((HIGH[:2], LOW[:2]), ["not run", "not run"]),
    ],
    ids=[
        "rebased as attention",
        "as in the paper",
        "based best",
        "attention worst",
        "not far less",
        "no spread",
        "one seed",
        "no rebased",
    ],
)
def test_what_is_said_of_the_papers_claims(models: Sequence[Sequence[float]], verdicts: list[str]) -> None:
    assert _verdicts(*models) == verdicts


def test_two_tests_are_corrected_for_two() -> None:
    """Welch's p of each is below 0.05, but not twice that."""
    high, low = [0.95, 0.85], [0.0, 0.001]
    p = welch_p(*_moments(high), 2, *_moments(low), 2)
    assert p < 0.05 < 2 * p
    assert _verdicts(high, low, low)[0] == "not shown"


def _moments(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values)


@pytest.mark.parametrize(
    ("narrow", "wide", "said", "verdict"),
    [
        ((0.1, 0.2, 0.1), (0.2, 0.1, 0.3), "is shown by 6 pairs of width and seed (p = 0.031).", "agrees"),
        ((-0.1, -0.2, -0.1), (-0.2, -0.1, -0.3), "is shown by 6 pairs of width and seed (p = 0.031).", "differs"),
        ((0.1, 0.2), (0.2, 0.1), "With these 4 pairs of width and seed the least p that this test", "not shown"),
    ],
)
def test_widths_and_seeds_together_can_show_a_difference(
    narrow: Sequence[float], wide: Sequence[float], said: str, verdict: str
) -> None:
    """Of any number of widths: three seeds of one never could."""
    by_stack = {"copy_based": 0.0, "copy_rebased": 1.0}
    runs = tuple(
        _run(stack, seed, 0.5 + share * difference, width=width)
        for stack, share in by_stack.items()
        for width, differences in ((12, narrow), (24, wide))
        for seed, difference in enumerate(differences)
    )
    data = _measured_from({run.folder.name: _entry(run) for run in runs}, runs)
    _, claim = TABLE3.present(data).claims
    assert claim.ours.startswith("At d = 12 and 24. ")
    assert said in claim.ours
    assert claim.verdict == verdict


def test_one_query_shows_nothing() -> None:
    entry = {"num_pairs": 1, "truth": 1, "scores": [0.3, 0.5, 0.15, 0.05]}
    runs = {stack: entry | {"stack": stack} for stack in MODELS}
    (claim,) = FIGURE9.present({"runs": runs}).claims
    assert claim.ours == "Of one query of one example: tokens above an even share Attention 1, Based 1 and ReBased 1."
    assert claim.verdict == "not shown"
    (claim,) = FIGURE9.present({"runs": dict(list(runs.items())[:2])}).claims
    assert claim.verdict == "not run"
