"""Sources to shards: read, tokenised in batches, dealt to splits, and gone on with after any interruption."""

import errno
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebased.corpora.corpus import TOKENIZER, Corpus, open_corpus
from rebased.corpora.encoding import Encoder, hash_tokenizer, load_tokenizer
from rebased.corpora.manifest import (
    MANIFEST,
    Manifest,
    StoredFile,
    StoredSplit,
    hash_file,
    read_manifest,
    write_manifest,
)
from rebased.corpora.records import Reading
from rebased.corpora.request import Request, check_same, make_request
from rebased.corpora.state import STATE, State, read_state, write_state
from rebased.corpora.writing import CorpusWriter, Progress
from rebased.locks import alone_in
from rebased.runs import check_vacant

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["prepare"]


def prepare(
    sources: Sequence[str | Path],
    out: Path | str,
    *,
    tokenizer: str | Path = "bytes",
    validation: float | Sequence[str | Path] = 0.01,
    text_field: str = "text",
    set_field: str = "set",
    shard_tokens: int = 2**24,
    errors: str = "strict",
    on_progress: Callable[[Progress], None] | None = None,
) -> Corpus:
    """Tokenise ``sources`` into ``out``; interrupted, the same call goes on, to the same bytes.

    ``validation`` is the share of documents held out, by a hash of the text (of a long one, of its first piece), or
    sources of their own. A folder that holds the finished corpus is opened. ValueError, before any work, for arguments
    that cannot be, or that are not those the folder was begun with; while reading, for what is no text, by file.
    A folder's files with endings that are not known are left out; `Corpus.left_out` counts them.
    """
    out = Path(out)
    reading = Reading(text_field=text_field, set_field=set_field, errors=errors)
    request = make_request(sources, validation, reading, shard_tokens=shard_tokens)
    loaded = load_tokenizer(str(tokenizer))
    fields = request.fields | {"tokenizer": hash_tokenizer(loaded)}
    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out, "being prepared"):
        if (out / MANIFEST).exists():
            check_same(out, read_manifest(out).request, fields)
            (out / STATE).unlink(missing_ok=True)
            return open_corpus(out)
        try:
            state = _begin_or_go_on(out, fields)
            _tokenise(out, request, state, loaded, on_progress)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OSError(
                error.errno,
                f"the disk is full; what is finished in {out} stays: make room and give the same command again",
            ) from error
    return open_corpus(out)


def _begin_or_go_on(out: Path, fields: dict[str, Any]) -> State:
    if (out / STATE).exists():
        state = read_state(out)
        if state.input or state.pieces:
            check_same(out, state.request, fields)
            return state
        # Nothing counts yet, so other arguments are welcome; but their files may be fewer.
        for path in (*out.glob("*.tokens"), *out.glob("*.documents")):
            path.unlink()
    else:
        check_vacant(out, "a corpus", first=MANIFEST)
    state = State.at_the_beginning(fields)
    write_state(out, state)
    return state


def _tokenise(
    out: Path,
    request: Request,
    state: State,
    tokenizer: "PreTrainedTokenizerFast",
    on_progress: Callable[[Progress], None] | None,
) -> None:
    tokenizer.save_pretrained(out / TOKENIZER)
    encoder = Encoder(tokenizer)
    with closing(CorpusWriter(out, request, encoder, state)) as writer:
        for progress in writer.run():
            if on_progress is not None:
                on_progress(progress)
        splits = writer.finish()
    _check_not_empty(splits, request)
    saved = sorted(path for path in (out / TOKENIZER).rglob("*") if path.is_file())
    manifest = Manifest(
        dtype=encoder.dtype.name,
        vocab_size=encoder.vocab_size,
        end_of_text=encoder.end_of_text,
        tokenizer_hash=state.request["tokenizer"],
        tokenizer=tuple(
            StoredFile(path.relative_to(out).as_posix(), path.stat().st_size, hash_file(path)) for path in saved
        ),
        sets=writer.sets,
        splits=splits,
        request=state.request,
        left_out=request.count_left_out(out),
    )
    write_manifest(out, manifest)
    (out / STATE).unlink()


def _check_not_empty(splits: dict[str, StoredSplit], request: Request) -> None:
    if not any(split.num_bytes for split in splits.values()):
        names = [each["source"] for each in request.fields["sources"]]
        raise ValueError(f"there is no text in {', '.join(names)}")
    if not splits["train"].num_documents and any(each.share < 1 for each in request.inputs):
        raise ValueError(
            f"all {splits['validation'].num_documents:,} documents fell to validation, and none is left to train on; "
            "in another folder, give a smaller share, or validation sources of their own"
        )
