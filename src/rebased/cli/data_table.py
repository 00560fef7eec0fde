"""A corpus as a table: a row for each split, and for each of its sets."""

from rich.console import Console
from rich.text import Text

from rebased.cli.console import print_text
from rebased.cli.fitting import new_table, print_fitting
from rebased.cli.numbers import ABSENT
from rebased.corpora import Corpus
from rebased.corpora.counts import SetCount, count_by_set
from rebased.corpora.manifest import SPLITS

__all__ = ["print_corpus"]

_ENDINGS = 8
"""That a note has room for."""


def print_corpus(corpus: Corpus, console: Console) -> None:
    """Print the table, which corpus it is of, and what was not read."""
    table = new_table()
    for name in ("split", "set"):
        table.add_column(name)
    for name in ("tokens", "documents", "bytes", "bytes per token"):
        table.add_column(name, justify="right")
    for name in SPLITS:
        split = corpus.split(name)
        counts = count_by_set(split)
        table.add_row(name, "all", *_cells(SetCount("all", split.num_documents, split.num_tokens, split.num_bytes)))
        if len(counts) > 1:
            for count in counts:
                table.add_row("", Text(count.set), *_cells(count))
    print_fitting(table, console, keys=2)
    told = f"{corpus.folder}: {corpus.vocab_size:,} tokens in the vocabulary, {corpus.manifest.dtype}; tokenizer "
    print_text(told + corpus.tokenizer_hash[:12], console)
    if corpus.left_out:
        print_text(_note(corpus.left_out), console)


def _note(left_out: dict[str, int]) -> str:
    """Of the files that were not read, by their endings, the most frequent first."""
    count = sum(left_out.values())
    ordered = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{ending or 'none'} ({number:,})" for ending, number in ordered]
    rest = [f"and {len(told) - _ENDINGS:,} others"] if len(told) > _ENDINGS else []
    files = "1 file was" if count == 1 else f"{count:,} files were"
    return f"note: {files} left out (endings that are not known: {', '.join(told[:_ENDINGS] + rest)})"


def _cells(count: SetCount) -> tuple[str, ...]:
    ratio = f"{count.bytes / count.tokens:.2f}" if count.tokens else ABSENT
    return f"{count.tokens:,}", f"{count.documents:,}", f"{count.bytes:,}", ratio
