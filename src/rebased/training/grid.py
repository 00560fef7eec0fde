"""Grids: files that say which runs a sweep has.

``[run]`` holds fields of `RecallConfig`; a list means alternatives, and all are combined with all. ``[[cells]]``, if
there are any, bind several fields together: each is combined with ``[run]``, whose fields it overrides::

    [run]
    stack = ["rebased", "based"]
    d_model = 48
    learning_rate = [1e-3, 3e-3]
    seed = [42, 43]

    [[cells]]
    seq_len = 256
    task_options.num_pairs = 32

    [[cells]]
    seq_len = 512
    task_options.num_pairs = [64, 128]

A field that is itself a list is a list in a list.
"""

import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rebased.models.config import check_names
from rebased.training.folders import name_of
from rebased.training.recall import RecallConfig

__all__ = ["expand_grid", "read_grid"]

TABLES = ("run", "cells")
_OPTIONS = ("task_options", "model_options")
"""Fields that are tables, whose entries may be alternatives too."""


def read_grid(path: Path) -> list[RecallConfig]:
    """ValueError, naming the file and what is wrong in it, for anything but a grid."""
    try:
        return expand_grid(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ValueError(f"cannot read the grid {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error


def expand_grid(grid: dict[str, Any]) -> list[RecallConfig]:
    """The runs of a grid, later fields varying fastest; ValueError if there are none or one comes twice."""
    unknown = [name for name in grid if name not in TABLES]
    if unknown:
        raise ValueError(f"a grid has no {', '.join(unknown)}; there are {' and '.join(TABLES)}")
    common = _checked("[run]", grid.get("run", {}))
    cells = grid.get("cells", [{}])
    if not isinstance(cells, list) or not cells:
        raise ValueError(f"cells={cells!r} must be one table or more: [[cells]]")
    checked = [_checked(f"[[cells]] number {number}", cell) for number, cell in enumerate(cells, start=1)]
    configs = [config for cell in checked for config in _combinations(_overridden(common, cell))]
    seen = set()
    for config in configs:
        name = name_of(config)
        if name in seen:
            raise ValueError(f"the run {name} comes twice")
        seen.add(name)
    return configs


def _checked(where: str, fields: Any) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise ValueError(f"{where} is {fields!r}; it must be a table of a run's fields")
    try:
        check_names(RecallConfig, fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    for name in _OPTIONS:
        if not isinstance(fields.get(name, {}), dict):
            raise ValueError(f"{where} has {name}={fields[name]!r}; it must be a table")
    for place, value in _flat(fields).items():
        if value == []:
            raise ValueError(f"{where} has no alternatives for {'.'.join(place)}: the list is empty")
        if place == ("model_options", "layers") and not all(isinstance(x, list | tuple) for x in _alternatives(value)):
            raise ValueError(
                f"{where} has model_options.layers={value!r}; a list means alternatives, so a list of layers stands in "
                'a second list: [[{ mixer = "short_conv" }, …]]'
            )
    return fields


def _overridden(common: dict[str, Any], cell: dict[str, Any]) -> dict[str, Any]:
    options = {name: common.get(name, {}) | cell.get(name, {}) for name in _OPTIONS}
    return common | cell | options


def _combinations(fields: dict[str, Any]) -> Iterator[RecallConfig]:
    flat = _flat(fields)
    for values in itertools.product(*map(_alternatives, flat.values())):
        chosen: dict[str, Any] = {name: {} for name in _OPTIONS}
        for (name, *option), value in zip(flat, values, strict=True):
            if option:
                chosen[name][option[0]] = value
            else:
                chosen[name] = value
        yield RecallConfig.from_dict(chosen)


def _alternatives(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _flat(fields: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    """``{("d_model",): 48, ("task_options", "num_pairs"): 32}``."""
    flat: dict[tuple[str, ...], Any] = {}
    for name, value in fields.items():
        if name in _OPTIONS:
            flat |= {(name, option): each for option, each in value.items()}
        else:
            flat[(name,)] = value
    return flat
