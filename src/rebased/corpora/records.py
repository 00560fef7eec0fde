"""Documents from records: which field is the text, which names the set."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rebased.corpora.pieces import Piece, pieces_of, slices

__all__ = ["ERRORS", "Reading"]

ERRORS = ("strict", "replace")


@dataclass(frozen=True)
class Reading:
    """How sources are read."""

    text_field: str = "text"
    set_field: str = "set"
    """A dot leads into a field of a field: ``meta.pile_set_name``."""
    errors: str = "strict"
    """What is not UTF-8: an error, or U+FFFD in its place."""

    def __post_init__(self) -> None:
        if self.errors not in ERRORS:
            raise ValueError(f"errors={self.errors!r} must be one of {', '.join(ERRORS)}")
        for name in ("text_field", "set_field"):
            if not getattr(self, name):
                raise ValueError(f"{name}='' must name a field")

    def document(self, record: object, default_set: str, place: str) -> Iterator[Piece]:
        """The record's pieces; ValueError, naming the place, if there is no text in it."""
        if not isinstance(record, Mapping):
            raise ValueError(
                f"{place}: this is {type(record).__name__}, not an object with a field {self.text_field!r}"
            )
        text = _look_up(record, self.text_field)
        if not isinstance(text, str):
            what = f"is {type(text).__name__}, not text" if text is not None else "is not there"
            raise ValueError(f"{place}: text_field={self.text_field!r} {what}; there are {', '.join(map(str, record))}")
        set_name = _look_up(record, self.set_field)
        if set_name is not None and not isinstance(set_name, str | int):
            raise ValueError(f"{place}: set_field={self.set_field!r} is {type(set_name).__name__}, not text")
        name = default_set if set_name is None else self.clean(str(set_name), place)
        return pieces_of(slices(self.clean(text, place)), name)

    def clean(self, text: str, place: str) -> str:
        """Text that UTF-8 can hold: halves of surrogate pairs, which JSON can, are not UTF-8's."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            if self.errors == "strict":
                raise ValueError(
                    f"{place}: character {error.start} is half a surrogate pair; errors='replace' puts U+FFFD there"
                ) from None
            return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
        return text


def _look_up(record: Mapping[str, Any], field: str) -> object:
    """The field of that very name, or the one that the dots lead to; None if there is none."""
    if field in record:
        return record[field]
    outer, dot, inner = field.partition(".")
    found = record.get(outer)
    return _look_up(found, inner) if dot and isinstance(found, Mapping) else None
