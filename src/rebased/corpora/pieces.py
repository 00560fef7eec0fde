"""Text in pieces of bounded length: all that is held and tokenised at once, however long the document."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["PIECE", "Piece", "pieces_of", "slices"]

PIECE = 2**20
"""Characters of a piece, at most. A document no longer than this is tokenised whole."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of a document's text, or all of it."""

    text: str
    set: str
    begins: bool
    """The document."""
    ends: bool


def pieces_of(chunks: Iterable[str], set_name: str) -> Iterator[Piece]:
    """One document, given in chunks of any sizes: the same pieces for the same text."""
    begins, held = True, ""
    for chunk in chunks:
        held += chunk
        while len(held) > PIECE:
            border = _border(held)
            yield Piece(held[:border], set_name, begins, ends=False)
            begins, held = False, held[border:]
    yield Piece(held, set_name, begins, ends=True)


def slices(text: str) -> Iterator[str]:
    """Chunks of a text that is in memory already."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def _border(text: str) -> int:
    """Where to cut so that tokens are, for common tokenizers, those of the whole text.

    Between a line's end and a line that is not indented, else between a word and the space before it, in the second
    half; where there are neither, anywhere.
    """
    half = PIECE // 2
    at = text.rfind("\n", half, PIECE)
    while at != -1:
        if not text[at + 1].isspace() and not text[at - 1].isspace():  # an empty line may be one token with its end
            return at + 1
        at = text.rfind("\n", half, at)
    at = text.rfind(" ", half, PIECE)
    while at != -1:
        if not text[at - 1].isspace():
            return at
        at = text.rfind(" ", half, at)
    return PIECE
