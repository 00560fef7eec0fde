"""Grid files: which runs they mean, and what is wrong with the others."""

from pathlib import Path
from typing import Any

import pytest

from rebased.training.grid import expand_grid, read_grid

RUN: dict[str, Any] = {
    "stack": "rebased",
    "d_model": 12,
    "seq_len": 16,
    "learning_rate": 1e-3,
    "seed": 1,
    "task_options": {"num_pairs": 4},
}

CONV, REBASED = {"mixer": "short_conv"}, {"mixer": "rebased"}


def test_layers_stand_in_a_second_list() -> None:
    configs = expand_grid({"run": RUN | {"model_options": {"layers": [[CONV, REBASED], [CONV]]}}})
    assert [len(config.model().layers) for config in configs] == [2, 1]


def test_lists_are_multiplied_out() -> None:
    configs = expand_grid({"run": RUN | {"stack": ["rebased", "based"], "seed": [1, 2, 3]}})
    assert [(config.stack, config.seed) for config in configs] == [
        (stack, seed) for stack in ("rebased", "based") for seed in (1, 2, 3)
    ]


def test_options_are_multiplied_out() -> None:
    configs = expand_grid({"run": RUN | {"task_options": {"num_pairs": [2, 4], "power": 0.5}}})
    assert [config.task_options for config in configs] == [{"num_pairs": n, "power": 0.5} for n in (2, 4)]


def test_cells_bind_fields_and_override() -> None:
    cells = [{"seq_len": 32, "task_options": {"num_pairs": 8}}, {"seq_len": 64, "seed": [5, 6]}]
    configs = expand_grid({"run": RUN | {"task_options": {"num_pairs": 4, "power": 0.5}}, "cells": cells})
    found = [(config.seq_len, config.seed, config.task_options["num_pairs"]) for config in configs]
    assert found == [(32, 1, 8), (64, 5, 4), (64, 6, 4)]
    assert {config.task_options["power"] for config in configs} == {0.5}


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"runs": {}}, "a grid has no runs; there are run and cells"),
        ({"run": RUN | {"width": 3}}, "RecallConfig has no width; there are stack, d_model, seq_len"),
        ({"run": RUN, "cells": [{"widths": [3]}]}, "RecallConfig has no widths; there are"),
        ({"run": RUN | {"seed": []}}, r"\[run\] has no alternatives for seed: the list is empty"),
        ({"run": RUN | {"task_options": {"num_pairs": []}}}, r"no alternatives for task_options\.num_pairs"),
        ({"run": RUN | {"task_options": 3}}, "task_options=3; it must be a table"),
        ({"run": RUN | {"seed": [1, 1]}}, "the run rebased-d12-L16-pairs[0-9]-lr0.001-s1-[0-9a-f]+ comes twice"),
        ({"run": RUN, "cells": [{}, {}]}, "comes twice"),
        ({"run": RUN, "cells": []}, "must be one table or more"),
        ({"run": RUN, "cells": {"seed": 1}}, "must be one table or more"),
        ({"run": RUN, "cells": [3]}, r"\[\[cells\]\] number 1 is 3; it must be a table"),
        ({"run": 3}, r"\[run\] is 3; it must be a table"),
        ({}, "needs stack, d_model, seq_len, learning_rate, seed"),
        ({"run": RUN | {"stack": "rebasd"}}, "stack='rebasd' is unknown"),
        ({"run": RUN | {"model_options": {"layers": [CONV, REBASED]}}}, "a list of layers stands in a second list"),
        ({"run": RUN | {"model_options": {"layers": CONV}}}, "a list of layers stands in a second list"),
    ],
)
def test_errors_say_what_there_is(grid: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand_grid(grid)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the grid .*: No such file"),
        ("[run", r"grid\.toml: Expected"),
        ("[run]\nstack = 3", r"grid\.toml: RecallConfig needs"),
        (
            "[run]\nstack = 'rebased'\nd_model = 'wide'\nseq_len = 16\nlearning_rate = 1.0\nseed = 1",
            r"grid\.toml: d_model is 'wide'; it must be an integer",
        ),
    ],
)
def test_errors_name_the_file(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_grid(path)


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("examples/*.toml")), ids=lambda path: path.stem)
def test_examples_are_grids(path: Path) -> None:
    assert read_grid(path)
