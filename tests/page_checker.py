"""A reader of pages that insists on well-formed ones."""

import re
from collections import Counter
from html.parser import HTMLParser

_NEVER_CLOSED = ("meta", "img")


class PageChecker(HTMLParser):
    """Collects text, ids, headings and links; what is opened must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.sources: list[str] = []
        """Of images and links."""
        self.ids: Counter[str] = Counter()
        self.referred: set[str] = set()
        """Ids that links, clips and repeated shapes name."""
        self.headings: list[int] = []
        """Their levels."""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _NEVER_CLOSED:
            self.open.append(tag)
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))
        for name, value in attrs:
            if name in ("src", "href"):
                self.sources.append(value or "")
            if name == "id":
                self.ids[value or ""] += 1
            if name == "href" and value and value.startswith("#"):
                self.referred.add(value[1:])
            self.referred |= set(re.findall(r"url\(#(.+?)\)", value or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return " ".join(self.text.split())

    def assert_needs_no_other_file(self) -> None:
        """Pictures are in the page, and links lead to places in it, each of which exists once."""
        assert [source[:40] for source in self.sources if not source.startswith(("#", "data:"))] == []
        assert self.referred - self.ids.keys() == set()
        assert [name for name, count in self.ids.items() if count > 1] == []
