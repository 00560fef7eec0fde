"""Table 2 of files as `rebased lm eval` writes them, also where little is known of a model."""

import json
from pathlib import Path
from typing import Any

import pytest

from rebased.analysis.pages import Table
from rebased.paper.experiment import Material
from rebased.paper.table2 import TABLE2

RUN: dict[str, Any] = {
    "model": "rebased",
    "seed": 1,
    "parameters": 156_992_256,
    "tokens": 2_600_000_000,
    "corpus": "prose",
    "ar_fraction": 0.36,
    "perplexity": {"all": 20.0, "ar": 5.0, "non_ar": 60.0},
}


def rows_of(folder: Path, *runs: dict[str, Any]) -> dict[str, list[str]]:
    (folder / "lm").mkdir()
    for index, run in enumerate(runs):
        (folder / "lm" / f"{index}.json").write_text(json.dumps(run))
    data = TABLE2.measure(Material(scale="smoke", runs=(), out=folder, device="cpu"))
    table = TABLE2.present(json.loads(json.dumps(data))).parts[-1]
    assert isinstance(table, Table)
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_means_and_spreads_over_seeds(tmp_path: Path) -> None:
    other = RUN | {"seed": 2, "perplexity": {"all": 22.0, "ar": 5.0, "non_ar": 62.0}}
    rows = rows_of(tmp_path, RUN, other, RUN | {"model": "based"}, RUN | {"model": "rebased-small"})
    assert rows["ReBased"] == ["2,600,000,000", "21.00 ± 1.41", "5.00 ± 0.00", "61.00 ± 1.41"]
    assert rows["Based"] == rows["rebased-small"] == ["2,600,000,000", "20.00", "5.00", "60.00"]
    assert rows["ReBased, the paper's"] == ["", "16.45", "3.67", "56.31"]
    assert "Attention" not in rows


def test_what_nobody_knows(tmp_path: Path) -> None:
    unknown = {"model": None, "seed": None, "tokens": None, "perplexity": {"all": 20.0, "ar": None, "non_ar": 20.0}}
    assert rows_of(tmp_path, RUN | unknown)["unknown"] == ["unknown", "20.00", "—", "20.00"]


def test_files_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"0\.json is no result of a language model: KeyError\('perplexity'\)"):
        rows_of(tmp_path, {name: value for name, value in RUN.items() if name != "perplexity"})
