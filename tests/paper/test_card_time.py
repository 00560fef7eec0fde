"""Time of cards, shared out among what trains on them."""

import datetime
from typing import Any

import pytest

from rebased.paper.card_time import share_time


def start(card: str | None) -> dict[str, Any]:
    return {"event": "start"} | ({} if card is None else {"card": card})


def epoch(begin: float, end: float) -> dict[str, Any]:
    """Half a second of it went into saving."""
    date = datetime.datetime.fromtimestamp(1e9 + end).astimezone().isoformat(timespec="milliseconds")
    return {"event": "epoch", "date": date, "seconds": end - begin - 0.5, "seconds_to_save": 0.5}


@pytest.mark.parametrize("card", ["abc", None], ids=["named", "of a log that names none"])
def test_groups_share_a_card(card: str | None) -> None:
    """Alone 0 to 10 and 30 to 40, by two 10 to 20, nobody between."""
    logs = {"a": [start(card), epoch(0, 8), epoch(8, 20)], "b": [start(card), epoch(10, 20), epoch(30, 40)]}
    assert share_time(logs) == pytest.approx({"a": 15, "b": 15})


def test_cards_do_not_share() -> None:
    logs = {"a": [start("abc"), epoch(0, 8)], "b": [start("def"), epoch(0, 8)], "c": [start("abc")]}
    assert share_time(logs) == pytest.approx({"a": 8, "b": 8, "c": 0})


def test_a_group_goes_on_on_another_card() -> None:
    logs = {"a": [start("abc"), epoch(0, 8), start("def"), epoch(10, 20)], "b": [start("abc"), epoch(10, 20)]}
    assert share_time(logs) == pytest.approx({"a": 18, "b": 10})


def test_an_epoch_ends_when_the_next_begins() -> None:
    """Rounded to milliseconds they may overlap, and a group trains once all the same."""
    logs = {"a": [start("abc"), epoch(0, 8.001), epoch(8, 20)]}
    assert share_time(logs) == pytest.approx({"a": 20}, abs=0.01)


def test_groups_have_shares_and_not_their_epochs() -> None:
    """Two epochs of one overlap from 8 to 9, and it has half of that second, as the other group."""
    logs = {"a": [start("abc"), epoch(0, 9), epoch(8, 20)], "b": [start("abc"), epoch(0, 20)]}
    assert share_time(logs) == pytest.approx({"a": 10, "b": 10})
    assert share_time({"a": logs["a"]}) == pytest.approx({"a": 20})
