"""The examples run, as files and in a short form; what they print is what they promise."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rebased.analysis.saved_model import load_saved_model
from rebased.training.grid import read_grid

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def main_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs an example's main with settings that make it short; gives what it printed."""

    def run(name: str, **settings: Any) -> str:
        runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](**settings)
        return capsys.readouterr().out

    return run


def test_drop_in(main_of: Callable[..., str]) -> None:
    printed = main_of("drop_in", num_steps=2, num_tokens=64).splitlines()
    assert [line.partition(":")[0] for line in printed] == ["softmax", "ReBased"]


def test_compare_mixers(main_of: Callable[..., str], tmp_path: Path) -> None:
    for _ in range(2):  # the second time from the disk
        printed = main_of("compare_mixers", folder=tmp_path, epochs=1, num_train=50)
        assert printed.count("accuracy") == 4
        assert "over 8 pairs of runs" in printed


def test_streaming(main_of: Callable[..., str]) -> None:
    printed = main_of("streaming", num_tokens=2500)
    assert "  2,500 tokens read, 55,496 bytes kept" in printed
    assert "token, number 2,501, has the same output" in printed


def test_packing(main_of: Callable[..., str]) -> None:
    assert "packed: loss" in main_of("packing", number=5, longest=40)


def test_finetune(main_of: Callable[..., str], tmp_path: Path) -> None:
    """Anew, and from the folder it was saved to."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert "There should be" in main_of("finetune", num_steps=1, saved=first)
    assert "There should be" in main_of("finetune", folder=first, num_steps=1, saved=second)
    models = [load_saved_model(folder) for folder in (first, second)]
    assert all(each.tokenizer is not None for each in models)
    weights = [each.model.get_input_embeddings().weight for each in models]
    assert not torch.equal(*weights)
    with pytest.raises(SystemExit, match="none holds no model"):
        main_of("finetune", folder=tmp_path / "none")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["drop_in", "compare_mixers", "streaming", "packing", "finetune"])
def test_in_full(name: str, main_of: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = main_of(name)
    if name == "drop_in":
        assert printed.count("loss 0.0") == 2
    if name == "compare_mixers":
        assert "rebased is better" in printed
    if name == "finetune":
        assert "There should be one-- and preferably" in printed


@pytest.mark.parametrize("grid", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_grids(grid: Path) -> None:
    assert read_grid(grid)


def test_the_readme_has_a_line_for_each() -> None:
    text = (EXAMPLES / "README.md").read_text()
    names = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".toml")}
    assert all(text.count(f"]({name})") == 1 for name in names)
