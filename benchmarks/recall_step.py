"""Which step of recall training a script here is to look at, by its options."""

import argparse

from rebased.training.recall import RecallConfig

__all__ = ["add_step_options", "recall_runs"]


def add_step_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stacks", nargs="+")
    parser.add_argument("--d-model", type=int, default=128)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--num-pairs", type=int, default=128)
    parser.add_argument("--replicas", type=int, default=2)


def recall_runs(stack: str, options: argparse.Namespace) -> list[RecallConfig]:
    """One for each replica, in bfloat16."""
    run = RecallConfig(
        stack=stack,
        d_model=options.d_model,
        seq_len=options.seq_len,
        task_options={"num_pairs": options.num_pairs},
        learning_rate=1e-3,
        seed=0,
        dtype="bfloat16",
    )
    return [run.but(seed=seed) for seed in range(options.replicas)]
