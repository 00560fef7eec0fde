"""Plans: who trains with whom, decided once."""

import json
from pathlib import Path
from typing import Any

import pytest
from sweep_cases import TINY, tiny

from rebased.layers import MIXERS, ShortConv
from rebased.runs import write_config, write_metrics, write_result
from rebased.tasks import TASKS, Examples
from rebased.training.folders import SweepFolder, name_of
from rebased.training.plan import Group, extend_plan, read_plan
from rebased.training.recall import RecallConfig

RUNS = [tiny(learning_rate=rate, seed=seed) for rate in (1e-3, 3e-3) for seed in (1, 2, 3)]


def fits(count: int, micro_batches: int = 1):
    return lambda config, num_wanted: (count, micro_batches)


def never(config: RecallConfig, num_wanted: int) -> tuple[int, int]:
    pytest.fail("what is planned was planned again")


def test_runs_of_one_cell_train_together(tmp_path: Path) -> None:
    wide = [tiny(d_model=24, seed=seed) for seed in (1, 2)]
    groups = extend_plan(SweepFolder(tmp_path), [*RUNS, *wide], fits(20, 3))
    assert [group.configs for group in groups] == [tuple(RUNS), tuple(wide)]
    assert {group.micro_batches for group in groups} == {3}
    assert groups[0].name.startswith("rebased-d12-L16-6x-")


def test_names_begin_with_the_stack_or_with_layers_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders of runs that have been are found by these."""
    assert name_of(TINY) == "rebased-d12-L16-pairs4-lr0.003-s1-4d7bf8627614"
    assert Group((TINY,), micro_batches=1).name == "rebased-d12-L16-1x-30b12732"
    monkeypatch.setitem(MIXERS, "my/mixer", ShortConv)
    config = tiny(model_options={"layers": [{"mixer": name} for name in ("short_conv", "my/mixer", "my/mixer")]})
    assert name_of(config).startswith("short_conv+my_mixer-d12-L16-pairs4-lr0.003-s1-")
    assert Group((config,), micro_batches=1).name.startswith("short_conv+my_mixer-d12-L16-1x-")


def test_names_are_no_longer_than_directories_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"mixer_with_a_long_name_{number}" for number in range(20)]
    for name in names:
        monkeypatch.setitem(MIXERS, name, ShortConv)
    assert len(name_of(tiny(model_options={"layers": [{"mixer": name} for name in names]}))) < 200


def test_names_do_not_depend_on_the_order_of_options_and_fit_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def task(num_examples: int, seq_len: int, *, source: str, num_pairs: int, **where: Any) -> Examples:
        return TASKS["mqar"](num_examples, seq_len, num_pairs=num_pairs, **where)

    monkeypatch.setitem(TASKS, "files", task)
    options = {"num_pairs": 4, "source": "data/train.txt" * 30}
    one, other = (
        tiny(task="files", task_options=dict(pairs)) for pairs in (options.items(), reversed(options.items()))
    )
    assert name_of(one) == name_of(other)
    assert "/" not in name_of(one)
    assert len(name_of(one)) < 200


def test_a_run_made_with_another_config_is_refused(tmp_path: Path) -> None:
    """As where a default has changed since: its name is the same."""
    folder = SweepFolder(tmp_path)
    write_config(folder.run(TINY), TINY.but(epochs=TINY.epochs + 1).to_dict())
    write_metrics(folder.run(TINY), [])
    write_result(folder.run(TINY), {"accuracy": 0.5})
    with pytest.raises(ValueError, match="is another run: it differs in epochs"):
        folder.read(TINY)


@pytest.mark.parametrize(
    ("fit", "workers", "sizes"),
    [(6, 1, [6]), (5, 1, [3, 3]), (4, 1, [3, 3]), (1, 1, [1] * 6), (6, 2, [3, 3]), (6, 4, [2, 2, 2]), (2, 9, [1] * 6)],
)
def test_groups_are_even_and_as_many_as_workers(fit: int, workers: int, sizes: list[int], tmp_path: Path) -> None:
    groups = extend_plan(SweepFolder(tmp_path), RUNS, fits(fit), num_workers=workers)
    assert [len(group.configs) for group in groups] == sizes
    assert {config for group in groups for config in map(name_of, group.configs)} == set(map(name_of, RUNS))


def test_no_more_room_is_looked_for_than_there_are_runs(tmp_path: Path) -> None:
    """Batches were cut into parts for runs that nobody had asked for."""
    asked = dict[int, int]()

    def fit(config: RecallConfig, num_wanted: int) -> tuple[int, int]:
        asked[config.d_model] = num_wanted
        return 20, 1

    wide = [tiny(d_model=24, seed=seed) for seed in (1, 2)]
    extend_plan(SweepFolder(tmp_path), [*RUNS, *wide], fit, num_workers=2)
    assert asked == {12: 4, 24: 2}  # a worker's share of eight; both of a cell


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


def test_what_fits_is_found_without_the_lock(tmp_path: Path) -> None:
    """It takes long on a GPU. What others plan meanwhile stays as they planned it."""
    folder = SweepFolder(tmp_path)
    theirs = []

    def slow(config: RecallConfig, num_wanted: int) -> tuple[int, int]:
        theirs.extend(extend_plan(folder, RUNS[:4], fits(2, 3)))
        return 6, 1

    groups = extend_plan(folder, RUNS, slow)
    assert groups[:2] == theirs
    assert [(group.configs, group.micro_batches) for group in groups[2:]] == [(tuple(RUNS[4:]), 1)]
    assert read_plan(folder) == groups
