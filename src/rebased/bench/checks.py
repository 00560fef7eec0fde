"""Checks that the benches' configs share: an error names the field, what it was and what it may be."""

import os
from collections.abc import Iterable

import torch

from rebased.checks import check_choice, check_integer

__all__ = [
    "DEVICES",
    "DTYPES",
    "check_choices",
    "check_graphs",
    "check_integers",
    "check_lengths",
    "check_machine",
    "check_tokens",
]

DEVICES = ("cpu", "cuda")
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def check_choices(name: str, values: tuple[str, ...], choices: Iterable[str]) -> None:
    """At least one, each among ``choices``, none twice."""
    if not values:
        raise ValueError(f"{name} is empty; it may hold {', '.join(choices)}")
    for value in values:
        check_choice(name, value, choices)
    _check_distinct(name, values)


def check_lengths(name: str, values: tuple[int, ...]) -> None:
    if not values:
        raise ValueError(f"{name} is empty; it must hold at least one positive integer")
    for value in values:
        check_integer(name, value)
    _check_distinct(name, values)


def check_integers(config: object, *names: str) -> None:
    """That each of these fields is a positive integer, or None, which stands for a default."""
    for name in names:
        if (value := getattr(config, name)) is not None:
            check_integer(name, value)


def check_tokens(tokens: int, lengths: tuple[int, ...]) -> None:
    """That sequences of each length make up so many tokens."""
    for length in lengths:
        if tokens % length:
            raise ValueError(f"tokens={tokens} is no multiple of the length {length}")


def check_graphs(graphs: bool, device: str) -> None:
    if graphs and device != "cuda":
        raise ValueError(f"graphs=True needs device='cuda', got {device!r}")


def check_machine(device: str, threads: int | None) -> None:
    """Raise ValueError if this machine lacks what a bench takes."""
    processors = os.cpu_count() or 1
    if threads is not None and threads > processors:
        raise ValueError(f"threads={threads} is more than the {processors} processors of this machine")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' was asked for, but torch sees no CUDA device; use 'cpu'")


def _check_distinct(name: str, values: tuple[object, ...]) -> None:
    if len(set(values)) != len(values):
        raise ValueError(f"{name}={','.join(map(str, values))} names an entry twice")
