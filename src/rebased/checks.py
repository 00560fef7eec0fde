"""Checks of single values, for every room: each names the argument, what it was and what it may be."""

import math
from collections.abc import Iterable

__all__ = ["check_choice", "check_integer", "check_not_negative", "check_number", "check_positive_number"]


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """ValueError for what is not among them."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown; it may be {', '.join(map(repr, choices))}")


def check_integer(name: str, value: int, *, least: int = 1) -> None:
    """TypeError for what is no integer, as True is none; ValueError for one below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    if value < least:
        raise ValueError(f"{name}={value} must be at least {least}")


def check_positive_number(name: str, value: float) -> None:
    """TypeError for what is no number; ValueError for zero, below, and what is not finite."""
    check_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value} must be positive and finite")


def check_not_negative(name: str, value: float) -> None:
    """TypeError for what is no number; ValueError below zero, and for what is not finite."""
    check_number(name, value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value} must be finite and not negative")


def check_number(name: str, value: float) -> None:
    """TypeError for what is neither an integer nor a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; it must be a number")
