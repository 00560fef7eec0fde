"""`rebased lm eval`: what it prints, writes and refuses; and Table 2, which is made of what it writes."""

import json
import math
import shutil
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from commands import run
from evaluation_cases import make_corpus, perplexity_of, predicted_tokens, save_model
from rebased.analysis.pages import Table
from rebased.analysis.saved_model import load_saved_model
from rebased.cli.app import app
from rebased.paper.experiment import Material
from rebased.paper.table2 import TABLE2

TRAINING = {"model": "rebased", "seed": 3, "tokens": 2_600_000, "corpus": "prose", "config": {"steps": 10}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model, whose training is known, and a corpus."""
    folder = tmp_path_factory.mktemp("evaluation")
    make_corpus(folder)
    save_model(folder / "model")
    (folder / "model" / "training.json").write_text(json.dumps(TRAINING))
    save_model(folder / "gpt2", architecture="gpt2")
    return folder


def evaluate(*arguments: str | Path) -> tuple[int, str]:
    return run("lm", "eval", *arguments, "--device", "cpu")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_prints_and_writes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "rebased.json"
    options = ("--length", "150", "--dtype", "float64", "--batch-size", "3", "--out", out)
    status, said = evaluate(folder / "model", "--data", folder / "corpus", *options)
    assert status == 0, said
    model = load_saved_model(folder / "model").model.double()
    tokens = list(chain.from_iterable(predicted_tokens(model, 150, crossing=True)))
    expected = {
        "all": perplexity_of(tokens),
        "ar": perplexity_of([token for token in tokens if token.is_pair]),
        "non_ar": perplexity_of([token for token in tokens if not token.is_pair]),
    }
    record = read(out)
    assert record["perplexity"] == pytest.approx(expected, rel=1e-9)
    fraction = sum(token.is_pair for token in tokens) / len(tokens)
    bits = sum(token.loss for token in tokens) / math.log(2) / sum(token.num_bytes for token in tokens)
    for number in (*(f"{value:,.2f} ±" for value in expected.values()), f"{fraction:.3f}", f"{bits:.4f}"):
        assert number in said
    for words in (
        "corpus, validation: 1,043 predicted tokens, 7 windows of 150; float64",
        "A token is AR if it followed the same token before in its window",
        "jackknife over windows",
        "set lists",
        "positions 0-127",
        "positions 128-149",
        f"wrote {out}",
    ):
        assert words in said
    assert {name: record[name] for name in ("model", "seed", "tokens", "corpus", "training")} == {
        **{name: TRAINING[name] for name in ("model", "seed", "tokens")},
        "corpus": "corpus",
        "training": TRAINING,
    }
    assert record["parameters"] == sum(x.numel() for x in model.parameters())
    assert record["config"]["length"] == 150
    assert record["environment"]["device"] == "cpu"
    assert set(record["by_set"]) == {"prose", "code", "lists"}


def test_table_2_is_made_of_it(folder: Path, tmp_path: Path) -> None:
    for seed in (3, 4):
        (folder / "model" / "training.json").write_text(json.dumps(TRAINING | {"seed": seed}))
        status, said = evaluate(
            folder / "model", "--data", folder / "corpus", "--out", tmp_path / "lm" / f"{seed}.json"
        )
        assert status == 0, said
    assert evaluate(folder / "gpt2", "--data", folder / "corpus", "--out", tmp_path / "lm" / "gpt2.json")[0] == 0
    records = {path.stem: read(path) for path in (tmp_path / "lm").iterdir()}
    assert [records[name]["seed"] for name in ("3", "4", "gpt2")] == [3, 4, None]
    data = TABLE2.measure(Material(scale="smoke", runs=(), out=tmp_path, device="cpu"))
    table = next(part for part in TABLE2.present(json.loads(json.dumps(data))).parts if isinstance(part, Table))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    perplexities = [f"{records['3']['perplexity'][kind]:.2f} ± 0.00" for kind in ("all", "ar", "non_ar")]
    assert rows["ReBased"] == [f"{records['3']['parameters']:,}", "2,600,000", "2", *perplexities]
    assert rows["unknown"] == [
        f"{records['gpt2']['parameters']:,}",
        "unknown",
        "1",
        *(f"{records['gpt2']['perplexity'][kind]:.2f}" for kind in ("all", "ar", "non_ar")),
    ]
    assert "Attention" not in rows


def test_other_options(folder: Path) -> None:
    options = ("--no-crossing", "--recurrence", "token", "--max-windows", "2", "--length", "64", "--split", "train")
    status, said = evaluate(folder / "gpt2", "--data", folder / "corpus", *options)
    assert status == 0, said
    assert "2 windows of 64, each document for itself" in said
    assert "A token is AR if it was there before in its window" in said
    _, said = evaluate(folder / "gpt2", "--data", folder / "corpus", "--max-windows", "1", "--length", "64")
    assert " 63 predicted tokens, 1 window of 64; " in said


@pytest.mark.parametrize(
    ("trained", "options", "note"),
    [
        (None, [], "windows of 300 tokens: the length it was trained with is unknown"),
        (None, ["--length", "64"], None),
        (64, [], None),
        (64, ["--length", "64"], None),
        (64, ["--length", "65"], "windows of 65 tokens: it was trained with 64, and later positions may be untrained"),
    ],
)
def test_a_length_it_may_not_know(
    trained: int | None, options: list[str], note: str | None, folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(folder / "model", tmp_path / "model")
    (model / "training.json").write_text(json.dumps(TRAINING | {"config": {"seq_len": trained}}))
    out = tmp_path / "out.json"
    status, said = evaluate(model, "--data", folder / "corpus", "--max-windows", "1", "--out", out, *options)
    assert status == 0, said
    notes = read(out)["notes"]
    assert len(notes) == (note is not None)
    assert said.count("note: ") == len(notes)
    if note is not None:
        assert note in notes[0]
        assert note in said


def test_no_bar_of_loading(folder: Path) -> None:
    """Neither before an error; and other loading has its own as before."""
    from transformers.utils import logging

    assert logging.is_progress_bar_enabled()
    for options, expected in (([], 0), (["--length", "500"], 1)):
        status, said = evaluate(folder / "model", "--data", folder / "corpus", "--max-windows", "1", *options)
        assert status == expected
        assert "Loading weights" not in said
    assert logging.is_progress_bar_enabled()


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--recurrence", "trigram"], 2, "recurrence='trigram' is unknown; it may be 'bigram', 'token'"),
        (["--length", "1"], 2, "length=1 must be at least 2"),
        (["--device", "tpu"], 2, "device='tpu' is unknown"),
        (["--dtype", "int8"], 2, "dtype='int8' is unknown"),
        (["--split", "test"], 1, "--split test is no split; there are train, validation"),
        (["--length", "500"], 1, "--length 500 is more than the model's 300 positions"),
        (["--split", "train"], 1, "no window of --length 300; a length up to 261 would do"),
        (["--data", "nowhere"], 1, "there is no folder nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_words(options: list[str], status: int, message: str, folder: Path, tmp_path: Path) -> None:
    given = [folder / "model", "--data", folder / "corpus", "--out", tmp_path / "out.json"]
    found, said = run("lm", "eval", *given, "--device", "cpu", *options)  # of an option given twice the last counts
    assert found == status
    assert message in said
    assert "Traceback" not in said
    assert not (tmp_path / "out.json").exists()


def test_a_folder_that_is_no_model(folder: Path, tmp_path: Path) -> None:
    for place, expected, message in (
        (tmp_path / "none", 2, "there is no folder"),
        (folder / "corpus", 1, "corpus has no config.json: it is no model"),
    ):
        status, said = evaluate(place, "--data", folder / "corpus")
        assert status == expected
        assert message in said
        assert "Traceback" not in said


def test_without_transformers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, said = evaluate(folder / "model", "--data", folder / "corpus")
    assert (status, said) == (1, "error: evaluation needs transformers: pip install transformers")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("40 GiB"), "error: out of memory; use a smaller --batch-size (40 GiB)"),
        (RuntimeError("CUDA error"), None),
    ],
    ids=["foreseen", "not foreseen"],
)
def test_only_what_is_foreseen_is_told_without_a_traceback(
    error: Exception, said: str | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("rebased.analysis.perplexity.evaluate", refuse)
    if said is None:
        arguments = ["lm", "eval", str(folder / "model"), "--data", str(folder / "corpus"), "--device", "cpu"]
        assert CliRunner().invoke(app, arguments).exception is error
    else:
        status, found = evaluate(folder / "model", "--data", folder / "corpus")
        assert (status, found) == (1, said)
