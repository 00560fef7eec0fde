"""A prepared corpus, as it lies in a folder."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebased.corpora.manifest import MANIFEST, SPLITS, Manifest, hash_splits, read_manifest
from rebased.corpora.split import Split
from rebased.corpora.state import STATE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["TOKENIZER", "Corpus", "open_corpus"]

TOKENIZER = "tokenizer"
"""The tokenizer's folder, as ``save_pretrained`` writes it."""


@dataclass(frozen=True)
class Corpus:
    """Made by ``open_corpus`` and ``prepare``. Reading tokens needs neither transformers nor the sources."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The folder's."""
        return self.folder.resolve().name

    @property
    def vocab_size(self) -> int:
        """Above every token; what a model of this corpus needs at least."""
        return self.manifest.vocab_size

    @property
    def end_of_text(self) -> int:
        """The token that every document ends with."""
        return self.manifest.end_of_text

    @property
    def tokenizer_hash(self) -> str:
        """What ``hash_tokenizer`` gives for the tokenizer."""
        return self.manifest.tokenizer_hash

    @property
    def content_hash(self) -> str:
        """Of tokens and documents: equal for corpora with the same content, wherever they lie."""
        return hash_splits(self.manifest)

    @property
    def left_out(self) -> dict[str, int]:
        """How many files of the sources' folders were not read, by their endings, which are not known."""
        return self.manifest.left_out

    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """From the corpus's own folder: nothing is downloaded."""
        from rebased.corpora.encoding import load_saved

        return load_saved(self.folder / TOKENIZER)

    def split(self, name: str) -> Split:
        """``train`` or ``validation``."""
        if name not in SPLITS:
            raise ValueError(f"name={name!r} is no split; there are {', '.join(SPLITS)}")
        return self._splits[name]

    @cached_property
    def _splits(self) -> dict[str, Split]:
        return {name: Split(self.folder, name, self.manifest) for name in SPLITS}

    def __reduce__(self) -> tuple[Any, ...]:
        return open_corpus, (self.folder,)

    def check(self) -> None:
        """Read every file; ValueError, naming it and what to do, for the first that is not what was written."""
        for file in self.manifest.files:
            file.check_content(self.folder)
        for name in SPLITS:
            _ = self.split(name).documents


def open_corpus(folder: Path | str) -> Corpus:
    """The corpus in this folder, if all its files are there in their sizes; ValueError, saying what to do, if not."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}; `rebased data prepare` makes it")
    if not (folder / MANIFEST).is_file():
        begun = (folder / STATE).is_file()
        what = "is not finished; give the same `rebased data prepare` again" if begun else "holds no prepared corpus"
        raise ValueError(f"{folder} {what}")
    manifest = read_manifest(folder)
    for file in manifest.files:
        file.check_size(folder)
    corpus = Corpus(folder, manifest)
    _ = corpus._splits
    return corpus
