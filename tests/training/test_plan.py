"""Plans: who trains with whom, decided once."""

import json
from pathlib import Path

import pytest
from sweep_cases import tiny

from rebased.runs import write_config, write_result
from rebased.training.folders import SweepFolder, name_of
from rebased.training.plan import extend_plan, read_plan
from rebased.training.recall import RecallConfig

RUNS = [tiny(learning_rate=rate, seed=seed) for rate in (1e-3, 3e-3) for seed in (1, 2, 3)]


def fits(count: int, micro_batches: int = 1):
    return lambda config: (count, micro_batches)


def never(config: RecallConfig) -> tuple[int, int]:
    pytest.fail("what is planned was planned again")


def test_runs_of_one_cell_train_together(tmp_path: Path) -> None:
    wide = [tiny(d_model=24, seed=seed) for seed in (1, 2)]
    groups = extend_plan(SweepFolder(tmp_path), [*RUNS, *wide], fits(20, 3))
    assert [group.configs for group in groups] == [tuple(RUNS), tuple(wide)]
    assert {group.micro_batches for group in groups} == {3}
    assert groups[0].name.startswith("rebased-d12-L16-6x-")


@pytest.mark.parametrize(
    ("fit", "workers", "sizes"),
    [(6, 1, [6]), (5, 1, [3, 3]), (4, 1, [3, 3]), (1, 1, [1] * 6), (6, 2, [3, 3]), (6, 4, [2, 2, 2]), (2, 9, [1] * 6)],
)
def test_groups_are_even_and_as_many_as_workers(fit: int, workers: int, sizes: list[int], tmp_path: Path) -> None:
    groups = extend_plan(SweepFolder(tmp_path), RUNS, fits(fit), num_workers=workers)
    assert [len(group.configs) for group in groups] == sizes
    assert {config for group in groups for config in map(name_of, group.configs)} == set(map(name_of, RUNS))


def test_plan_is_kept(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    groups = extend_plan(folder, RUNS, fits(3, 2))
    assert extend_plan(folder, RUNS, never) == groups
    assert read_plan(folder) == groups


def test_another_grid_adds_groups(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    old = extend_plan(folder, RUNS[:4], fits(2))
    added = extend_plan(folder, RUNS[3:], fits(6))
    assert added[0] in old  # the group of the run that both grids have
    assert [group.configs for group in added[1:]] == [tuple(RUNS[4:])]
    assert read_plan(folder) == [*old, *added[1:]]


def test_finished_run_from_elsewhere_is_not_planned(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    write_config(folder.run(RUNS[0]), RUNS[0].to_dict())
    write_result(folder.run(RUNS[0]), {})
    groups = extend_plan(folder, RUNS, fits(20))
    assert [group.configs for group in groups] == [tuple(RUNS[1:])]


@pytest.mark.parametrize("text", ["{", "{}", json.dumps({"groups": [{"cell": {"x": 1}, "runs": [{}]}]})])
def test_broken_plan_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match=r"plan\.json is not a plan"):
        extend_plan(SweepFolder(tmp_path), RUNS, fits(20))
