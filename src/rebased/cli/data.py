"""`rebased data`: text to tokens on disk.

Examples: ``rebased data prepare python --out corpora/python``, ``rebased data show corpora/python --text 200``
"""

from pathlib import Path
from typing import Annotated

import typer

from rebased.cli.console import fail, fail_stopped, in_options, make_console
from rebased.cli.data_progress import data_progress
from rebased.cli.data_table import print_corpus
from rebased.cli.numbers import count
from rebased.corpora import Corpus, open_corpus
from rebased.corpora import prepare as prepare_corpus

__all__ = ["data_app"]

data_app = typer.Typer(help="Corpora: text as tokens on disk.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(file_okay=False, help="What `rebased data prepare --out` made.")]


@data_app.command()
def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="Text, JSONL (both also .zst and .gz) or Parquet files, folders of these, hf:NAME[:CONFIG[:SPLIT]] "
            "for a dataset of the Hugging Face Hub, or python for the standard library on this machine.",
        ),
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for the corpus.")],
    tokenizer: Annotated[
        str, typer.Option(help="bytes, a tokenizers JSON file, a folder of save_pretrained, or a name of the Hub.")
    ] = "bytes",
    validation_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of documents to hold out, by a hash of their text.")
    ] = 0.01,
    validation: Annotated[
        list[str] | None, typer.Option(help="A source to hold out instead; may be given several times.")
    ] = None,
    text_field: Annotated[str, typer.Option(help="The field that is the text, in JSONL and Parquet.")] = "text",
    set_field: Annotated[
        str, typer.Option(help="The field that names the set; where there is none, the source's name does.")
    ] = "set",
    shard_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a file.")] = 2**24,
    errors: Annotated[
        str, typer.Option(help="What is not UTF-8: strict refuses it, replace puts U+FFFD there.")
    ] = "strict",
) -> None:
    """Tokenise sources into memory-mapped shards. Stopped or killed, the same command goes on."""
    try:
        with data_progress(make_console(stderr=True)) as show:
            corpus = prepare_corpus(
                sources,
                out,
                tokenizer=tokenizer,
                validation=validation or validation_share,
                text_field=text_field,
                set_field=set_field,
                shard_tokens=shard_tokens,
                errors=errors,
                on_progress=show,
            )
        print_corpus(corpus, make_console())
    except KeyboardInterrupt:
        fail_stopped()
    except (ImportError, ValueError, OSError) as error:
        fail(in_options(error, "errors", "text_field", "set_field", "validation"))
    if not corpus.split("validation").num_documents and (validation or validation_share):
        print(
            "no document was held out: each is wholly in one split; give --validation, or a larger --validation-share"
        )


@data_app.command()
def show(
    folder: Folder,
    text: Annotated[int, typer.Option(min=0, metavar="N", help="Print so many tokens as text, too.")] = 0,
) -> None:
    """Tokens, documents and bytes by split and set."""
    corpus = _open(folder)
    try:
        print_corpus(corpus, make_console())
        if text:
            _print_text(corpus, text)
    except (ImportError, ValueError, OSError) as error:
        fail(error)


@data_app.command()
def check(folder: Folder) -> None:
    """Read every file and compare its checksum."""
    corpus = _open(folder)
    try:
        corpus.check()
    except (ValueError, OSError) as error:
        fail(error)
    size = sum(file.size for file in corpus.manifest.files)
    print(f"{folder} is whole: {count(len(corpus.manifest.files), 'file')}, {size:,} bytes")


def _open(folder: Path) -> Corpus:
    try:
        return open_corpus(folder)
    except (ValueError, OSError) as error:
        fail(error)


def _print_text(corpus: Corpus, num_tokens: int) -> None:
    split = next(split for split in map(corpus.split, ("train", "validation")) if split.num_tokens)
    tokens = split.tokens(0, min(num_tokens, split.num_tokens))
    print(f"\n{corpus.tokenizer().decode(tokens)}")
