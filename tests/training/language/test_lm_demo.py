"""`rebased lm demo`, with few steps."""

import json
import math
import re
import sys
from pathlib import Path

import pytest
from lm_cases import write_texts
from typer.testing import CliRunner

from rebased import corpora
from rebased.analysis.evaluation import Evaluation, EvaluationConfig, Group
from rebased.analysis.tally import KINDS, Score
from rebased.cli import lm_demo
from rebased.cli.app import app


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a smaller corpus than Python's library, which takes its time to read."""
    prepare, texts = corpora.prepare, write_texts(tmp_path / "texts")
    monkeypatch.setattr(corpora, "prepare", lambda sources, out, **_: prepare([str(texts)], out, validation=0.3))
    for name, value in {"SEQ_LEN": 64, "EVALUATED_WINDOWS": 8, "NEW_TOKENS": 10}.items():
        monkeypatch.setattr(lm_demo, name, value)
    out = tmp_path / "out"
    arguments = ["lm", "demo", "--out", str(out), "--steps", "12", "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    said = result.stdout
    facts = json.loads((out / "model" / "training.json").read_text())
    assert facts["loss"] < 4.0  # from 5.8
    assert facts["validation_loss"] < 4.5
    assert "Perplexity" in said
    assert lm_demo.PROMPT in said
    (perplexity,) = (line.split()[1] for line in said.splitlines() if line.startswith("all "))
    told = re.search(r"in the first, ([\d.]+) in the last; ([\d.]+) over the 8 windows above", said)
    assert told is not None
    assert float(told[1]) == pytest.approx(facts["loss"], abs=0.006)
    assert math.exp(float(told[2])) == pytest.approx(float(perplexity), rel=0.01), "two numbers of the same windows"
    assert f"{facts['parameters']:,} parameters, {12 * 64 * lm_demo.BATCH_SIZE:,} bytes read in 12 steps" in said

    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0
    assert "step 1/12" not in again.stderr
    assert json.loads((out / "model" / "training.json").read_text()) == facts


def test_an_unknown_device_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["lm", "demo", "--out", str(tmp_path / "out"), "--device", "tpu"])
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_a_seed_that_is_too_large_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["lm", "demo", "--out", str(tmp_path / "out"), "--seed", str(2**32)])
    assert result.exit_code == 2
    assert "seed=4294967296 must be less than 2**32" in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before the corpus is made, in the words of `rebased lm train`."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = CliRunner().invoke(app, ["lm", "demo", "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert result.exit_code == 1
    assert result.output == "error: training of language models needs transformers: pip install transformers\n"
    assert not (tmp_path / "out").exists()


def test_losses_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    """A model that diverged has none, and the command crashed on it after all its work."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 5.8, "tokens_per_second": 10.0}\n')
    facts = {"parameters": 1, "tokens": 64, "steps": 1, "loss": None, "validation_loss": None}
    nothing = Score(num_tokens=0, loss=None, perplexity=None, standard_error=None)
    whole = Group(name="all", ar_fraction=0.0, scores=dict.fromkeys(KINDS, nothing), bits_per_byte=None)
    found = Evaluation(
        config=EvaluationConfig(),
        whole=whole,
        by_set=(),
        by_position=(),
        num_windows=1,
        num_bytes=0.0,
        seconds=1.0,
        notes=(),
    )
    said = lm_demo._told(facts, found, tmp_path, 1.0)
    assert "loss 5.80 in the first, — in the last; — over the 1 window above" in said
    assert "10 tokens/s" in said
