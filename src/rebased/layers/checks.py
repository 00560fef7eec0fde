"""Checks of what mixers are built with."""

__all__ = ["check_dropout", "check_positive", "check_size"]


def check_size(name: str, size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"{name} is {size!r}; it must be an integer")
    if size < 1:
        raise ValueError(f"{name}={size} must be positive")


def check_positive(name: str, value: float) -> None:
    _check_number(name, value)
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value} must be positive and finite")


def check_dropout(name: str, value: float) -> None:
    _check_number(name, value)
    if not 0 <= value < 1:
        raise ValueError(f"{name}={value} must be at least 0 and less than 1")


def _check_number(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}; it must be a number")
