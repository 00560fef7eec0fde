"""Long texts in pieces: nothing lost, nothing longer than it may be, and cut where tokens end."""

import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebased.corpora import pieces
from rebased.corpora.records import Reading
from rebased.corpora.text_files import read_text_file

SIZE = 12


@given(
    text=st.text(st.sampled_from("ab \n\té"), max_size=80),
    cuts=st.lists(st.integers(0, 80), max_size=6),
)
def test_pieces_are_the_text(text: str, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    chunks = [text[start:stop] for start, stop in pairwise(borders)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", SIZE)
        found = list(pieces.pieces_of(chunks, "s"))
        whole = list(pieces.pieces_of(pieces.slices(text), "s"))
    assert found == whole  # how the text arrived does not matter
    assert "".join(piece.text for piece in found) == text
    assert [piece.begins for piece in found] == [True] + [False] * (len(found) - 1)
    assert [piece.ends for piece in found] == [False] * (len(found) - 1) + [True]
    assert all(SIZE // 2 <= len(piece.text) <= SIZE for piece in found[:-1])
    assert len(found[-1].text) <= SIZE


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("aaaa\nbbb\ncc ddd", "aaaa\nbbb\n"),  # the last line end
        ("aaaa\nbbb\n c ddd", "aaaa\nbbb\n c"),  # not before an indented line: a word's border, then
        ("aaaaaaa  b  c", "aaaaaaa  b"),  # before the spaces, which belong to the next word
        ("aaaaaaaaaaaaaaa", "a" * SIZE),
        ("aa bb cccccccccc", "aa bb cccccc"),  # not in the first half
    ],
)
def test_where_it_is_cut(monkeypatch: pytest.MonkeyPatch, text: str, first: str) -> None:
    monkeypatch.setattr(pieces, "PIECE", SIZE)
    assert next(pieces.pieces_of([text], "s")).text == first


def test_a_file_longer_than_memory_is_never_held(tmp_path: Path) -> None:
    with (tmp_path / "long.txt").open("w") as file:
        for _ in range(40):
            file.write("some words and a line\n" * 50_000)
    tracemalloc.start()
    try:
        length = sum(len(piece.text) for piece in read_text_file(tmp_path / "long.txt", "s", Reading()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert length == 44_000_000
    assert peak < 12_000_000
