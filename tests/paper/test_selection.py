"""Which runs `--only` chooses, and what it refuses."""

import pytest

from rebased.paper.registry import EXPERIMENTS
from rebased.paper.selection import select

CONFIGS = EXPERIMENTS["figure1"].configs("small")


@pytest.mark.parametrize(
    ("only", "number"),
    [
        ([], 84),
        (["stack=mamba"], 12),
        (["stack=mamba,rwkv"], 24),
        (["stack=mamba,rwkv", "seq_len=128,512"], 16),
        (["learning_rate=1e-3", "d_model=64"], 21),
        (["learning_rate=0.001", "d_model=64"], 21),
        (["weight_decay=0.1"], 84),
        (["endless=False"], 84),
    ],
    ids=str,
)
def test_what_is_chosen(only: list[str], number: int) -> None:
    chosen = select(CONFIGS, only)
    assert len(chosen) == number
    assert chosen == [config for config in CONFIGS if config in chosen]
    if only[:1] == ["stack=mamba,rwkv"]:
        assert {config.stack for config in chosen} == {"mamba", "rwkv"}


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (["stack=mamba2"], "no run has stack=mamba2; there are conv_attention, based, rebased,"),
        (["seq_len=64"], "no run has seq_len=64; there are 128, 256, 512"),
        (["seq_len=long"], "no run has seq_len=long"),
        (["seq_len"], r"only='seq_len' must be name=value\[,value…\]; seq_len may be 128, 256, 512"),
        (["length=128"], "must be name=value.*with a name of stack, d_model, seq_len,"),
        (["task_options=1"], "with a name of stack"),
        (["stack=mamba", "stack=rwkv"], "no run has all of these"),
    ],
    ids=str,
)
def test_what_no_run_has(only: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(CONFIGS, only)


def test_where_nothing_is_trained_there_is_nothing_to_choose() -> None:
    with pytest.raises(ValueError, match="only='stack=rebased' chooses among runs, and there are none"):
        select(EXPERIMENTS["table4"].configs("small"), ["stack=rebased"])
