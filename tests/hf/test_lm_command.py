"""`rebased lm generate` with a model on disk."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from hf_cases import small_model
from safetensors.torch import load_file, save_file
from test_ecosystem import make_tokenizer
from typer.testing import CliRunner

from current_device import watch_current
from rebased.cli.app import app
from rebased.hf import RebasedForCausalLM


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    small_model(dtype=torch.float32).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["lm", "generate", *arguments, "--device", "cpu"])
    return result.exit_code, result.stdout if result.exit_code == 0 else result.output


def test_goes_on_from_a_prompt(saved: Path) -> None:
    status, said = run(str(saved), "the cat", "--max-new-tokens", "5")
    assert status == 0, said
    assert said.startswith("the cat")
    assert run(str(saved), "the cat", "--max-new-tokens", "5") == (status, said)


def test_the_device_asked_for_is_the_current_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches on torch's current GPU: with --device cuda:1, on another one than the tensors'."""
    entered, seen = watch_current(monkeypatch, "rebased.cli.lm_generate.current"), list[str]()
    monkeypatch.setattr(RebasedForCausalLM, "generate", lambda *_, **__: seen.extend(entered))
    status, said = run(str(saved), "the cat", "--max-new-tokens", "5")
    assert status == 0, said
    assert (seen, entered) == (["cpu"], [])


def test_draws_with_a_seed(saved: Path) -> None:
    drawn = {
        seed: run(str(saved), "the", "--temperature", "1.5", "--seed", seed, "--max-new-tokens", "20")[1]
        for seed in ("1", "1", "2")
    }
    assert drawn["1"] != drawn["2"]


def test_errors_are_one_line(saved: Path, tmp_path: Path) -> None:
    status, said = run(str(tmp_path / "none"), "x")
    assert status == 2
    assert "there is no folder" in said.replace("\n", " ")
    status, said = run(str(tmp_path), "x")
    assert status == 1
    assert "Traceback" not in said
    status, said = run(str(saved), "the cat", "--max-new-tokens", "100")
    assert status == 1
    assert "and 100 new ones are more than the model's" in said
    status, said = run(str(saved), "the cat", "--top-p", "0.5")
    assert status == 2
    assert "--top-p needs a --temperature" in said


def test_beyond_what_it_was_trained_with(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    (tmp_path / "training.json").write_text('{"config": {"seq_len": 8}}')
    for count, is_noted in ((2, False), (20, True)):
        arguments = ["lm", "generate", str(tmp_path), "the cat", "--max-new-tokens", str(count), "--device", "cpu"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert ("note: it was trained with 8 tokens" in result.stderr) == is_noted
        assert result.stdout.startswith("the cat")


def test_beyond_any_position(tmp_path: Path) -> None:
    """A model without a position table has no longest text, whatever length it was made for."""
    small_model(dtype=torch.float32, position_embedding_type="none", max_position_embeddings=16).save_pretrained(
        tmp_path
    )
    make_tokenizer().save_pretrained(tmp_path)
    status, said = run(str(tmp_path), "the cat", "--max-new-tokens", "30")
    assert status == 0, said
    assert said.startswith("the cat")


def test_missing_weights_are_an_error(saved: Path, tmp_path: Path) -> None:
    """Random ones would take their places, and the text would be noise."""
    folder = shutil.copytree(saved, tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    missing = next(name for name in weights if "q_proj" in name)
    save_file(
        {name: x for name, x in weights.items() if name != missing}, folder / "model.safetensors", {"format": "pt"}
    )
    status, said = run(str(folder), "the cat")
    assert status == 1
    assert "lacks weights of its model" in said
    assert missing in said


def test_no_tokenizer(tmp_path: Path) -> None:
    small_model(dtype=torch.float32).save_pretrained(tmp_path)
    status, said = run(str(tmp_path), "the cat")
    assert status == 1
    assert "has no tokenizer beside its model" in said


def test_an_empty_prompt(saved: Path) -> None:
    """The tokenizer here has no token that texts begin with."""
    status, said = run(str(saved), "")
    assert status == 1
    assert "makes no tokens of ''" in said


def test_an_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    status, said = run(str(tmp_path), "x")
    assert status == 2
    assert "is not finished; it has no checkpoint yet" in " ".join(said.replace("│", " ").split())
    checkpoint = tmp_path / "checkpoints" / "checkpoint-10"
    checkpoint.mkdir(parents=True)
    (checkpoint / "complete").touch()
    status, said = run(str(tmp_path), "x")
    assert "its last checkpoint is a model too" in " ".join(said.replace("│", " ").split())


def test_without_transformers(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert run(str(saved), "x") == (1, "error: generation needs transformers: pip install transformers\n")
