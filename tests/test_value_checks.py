"""Checks of single values: what passes, and what is said of what does not."""

import re
from typing import Any

import pytest

from rebased.checks import check_choice, check_integer, check_not_negative, check_positive_number


def test_choices() -> None:
    choices = {"cpu": 1, "cuda": 2}
    check_choice("device", "cuda", choices)
    for value in ("tpu", None, 1, []):
        with pytest.raises(ValueError, match=rf"^device={re.escape(repr(value))} is unknown; it may be 'cpu', 'cuda'$"):
            check_choice("device", value, choices)


@pytest.mark.parametrize(("value", "least"), [(1, 1), (7, 1), (0, 0), (2**70, 1)])
def test_integers_that_pass(value: int, least: int) -> None:
    check_integer("size", value, least=least)


@pytest.mark.parametrize(
    ("value", "least", "error", "message"),
    [
        (0, 1, ValueError, "^size=0 must be at least 1$"),
        (-1, 0, ValueError, "^size=-1 must be at least 0$"),
        (2.0, 1, TypeError, "^size is 2.0; it must be an integer$"),
        (True, 1, TypeError, "^size is True; it must be an integer$"),
        (None, 1, TypeError, "^size is None; it must be an integer$"),
        ("3", 1, TypeError, "^size is '3'; it must be an integer$"),
    ],
)
def test_integers_that_are_refused(value: Any, least: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_integer("size", value, least=least)


def test_zero_is_not_negative_and_not_positive() -> None:
    check_not_negative("rate", 0.0)
    with pytest.raises(ValueError, match=r"^rate=0\.0 must be positive and finite$"):
        check_positive_number("rate", 0.0)


@pytest.mark.parametrize("check", [check_positive_number, check_not_negative], ids=lambda check: check.__name__)
def test_numbers(check: Any) -> None:
    check("rate", 1e-9)
    check("rate", 3)
    for value in (-1e-9, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"^rate={value} must be"):
            check("rate", value)
    for value in (True, "1", None, 1j):
        with pytest.raises(TypeError, match=r"^rate is .*; it must be a number$"):
            check("rate", value)
