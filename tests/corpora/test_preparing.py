"""Text to shards: what is written is the documents, whole and in order, each in the split that its text decides."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import zstandard
from corpus_cases import END, all_tokens, stored_documents, texts, write_json_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from rebased.corpora import Progress, json_lines, open_corpus, pieces, prepare, sources, writing
from rebased.corpora.counts import SetCount, count_by_set

DOCUMENTS = [f"document {number}\n" * (number % 7) for number in range(60)] + ["naïve 🙂\r\n", "<|endoftext|>"]


def falls_to_validation(text: str, share: float) -> bool:
    return int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) / 2**64 < share


@settings(max_examples=40)
@given(
    documents=st.lists(texts, min_size=1, max_size=12).filter(any),
    sets=st.lists(st.sampled_from(["b", "a", "ü"]), min_size=12, max_size=12),
    piece=st.integers(2, 40),
    shard_tokens=st.integers(5, 200),
)
def test_documents_survive(documents: list[str], sets: list[str], piece: int, shard_tokens: int) -> None:
    """Any text, in pieces and shards of any size: documents, sets and bytes are read back as they were."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "PIECE", piece)
        folder = Path(name)
        sets = sets[: len(documents)]
        source = write_json_lines(folder / "some.jsonl", documents, sets)
        corpus = prepare([source], folder / "out", validation=0, shard_tokens=shard_tokens)
        assert stored_documents(corpus, "train") == documents
        split = corpus.split("train")
        expected = [[*text.encode(), END] for text in documents]
        assert all_tokens(split) == list(chain.from_iterable(expected))
        assert split.documents.ends.tolist() == np.cumsum([len(tokens) for tokens in expected]).tolist()
        assert split.documents.bytes.tolist() == [len(text.encode()) for text in documents]
        assert [split.sets[number] for number in split.documents.set_ids] == sets
        assert (split.num_documents, split.num_tokens) == (len(documents), sum(map(len, expected)))
        assert split.num_bytes == split.num_tokens - len(documents)
        sizes = [path.stat().st_size // 2 for path in sorted(corpus.folder.glob("train-*"))]
        assert sizes[:-1] == [shard_tokens] * (len(sizes) - 1)
        assert 0 < sizes[-1] <= shard_tokens
        corpus.check()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_split_is_decided_by_the_text(tmp_path: Path, share: float) -> None:
    """Neither order nor neighbours nor the file count."""
    forwards = prepare([write_json_lines(tmp_path / "a.jsonl", DOCUMENTS)], tmp_path / "forwards", validation=share)
    halves = [write_json_lines(tmp_path / f"{i}.jsonl", DOCUMENTS[::-1][i::2]) for i in range(2)]
    backwards = prepare(halves, tmp_path / "backwards", validation=share)
    for name, held_out in (("train", False), ("validation", True)):
        expected = [text for text in DOCUMENTS if falls_to_validation(text, share) == held_out]
        assert stored_documents(forwards, name) == expected
        assert sorted(stored_documents(backwards, name)) == sorted(expected)
    if share == 0.3:
        assert 5 < forwards.split("validation").num_documents < 35


def test_a_long_document_goes_where_its_first_piece_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 10)
    long = [f"{number:05d}four " + "x" * 25 for number in range(40)]
    corpus = prepare([write_json_lines(tmp_path / "a.jsonl", long)], tmp_path / "out", validation=0.5)
    expected = [text for text in long if falls_to_validation(text[:9], 0.5)]
    assert stored_documents(corpus, "validation") == expected
    assert 5 < len(expected) < 35


def test_validation_sources_are_held_out(tmp_path: Path) -> None:
    train = write_json_lines(tmp_path / "mine.jsonl", DOCUMENTS)
    held_out = write_json_lines(tmp_path / "theirs.jsonl", ["x", "y"])
    corpus = prepare([train], tmp_path / "out", validation=[held_out])
    assert stored_documents(corpus, "train") == DOCUMENTS
    assert stored_documents(corpus, "validation") == ["x", "y"]
    assert count_by_set(corpus.split("validation")) == [SetCount("theirs", 2, 4, 2)]


def test_nothing_is_both_trained_on_and_held_out(tmp_path: Path) -> None:
    held_out = write_json_lines(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(ValueError, match=r"validation: .*a.jsonl is also among the sources to train on"):
        prepare([str(tmp_path)], tmp_path / "out", validation=[held_out])


def test_sets_are_counted(tmp_path: Path) -> None:
    source = write_json_lines(tmp_path / "a.jsonl", ["x", "yy", "", "é"], ["one", "two", "two", "one"])
    corpus = prepare([source], tmp_path / "out", validation=0)
    assert count_by_set(corpus.split("train")) == [SetCount("one", 2, 5, 3), SetCount("two", 2, 4, 2)]
    assert count_by_set(corpus.split("validation")) == []


def test_progress_ends_with_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_BATCH_PIECES", 10)
    seen: list[Progress] = []
    source = write_json_lines(tmp_path / "a.jsonl", DOCUMENTS)
    corpus = prepare([source, source], tmp_path / "out", validation=0.2, on_progress=seen.append)
    splits = [corpus.split(name) for name in ("train", "validation")]
    assert len(seen) == 13  # twice 62 documents, ten at a time
    assert seen[-1] == Progress(
        source, 1, 2, 124, sum(split.num_tokens for split in splits), sum(split.num_bytes for split in splits)
    )
    assert [step.documents for step in seen[:-1]] == list(range(10, 130, 10))


# ---- Kinds of sources ----

TEXT = "One line\nand another\r\n\n  naïve 🙂 end"


def test_text_files(tmp_path: Path) -> None:
    """Each a document, to the last byte; compressed or not; a folder by names, without what is hidden or no text."""
    folder = tmp_path / "shelf"
    (folder / "b" / ".git").mkdir(parents=True)
    (folder / "b" / "c.md").write_bytes(TEXT.encode())
    (folder / "b" / ".git" / "x.txt").write_text("hidden")
    (folder / "b.txt").write_bytes(b"")
    (folder / "picture.png").write_bytes(b"\xff\xd8")
    (folder / "a.txt.gz").write_bytes(gzip.compress(TEXT.encode(), mtime=0))
    (folder / "z.py.zst").write_bytes(zstandard.compress(b"import this\n"))
    (tmp_path / "LICENSE").write_text("free")
    corpus = prepare([str(folder), str(tmp_path / "LICENSE")], tmp_path / "out", validation=0)
    # "b/c.md" stands before "b.txt": folders are sorted by their parts
    assert stored_documents(corpus, "train") == [TEXT, TEXT, "", "import this\n", "free"]
    assert [count.set for count in count_by_set(corpus.split("train"))] == ["shelf", "LICENSE"]


def test_files_of_unknown_endings_are_counted(tmp_path: Path) -> None:
    """Those of validation's folders too; hidden ones and the corpus itself are not meant."""
    for name in ("a/README", "a/b/LICENSE", "a/x.CSV", "a/y.csv.gz", "a/z.parquet.gz", "a/.hidden", "v/i.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("not read")
    for name in ("a", "v"):
        (tmp_path / name / "some.txt").write_text(f"read from {name}")
    expected = {"": 2, ".csv": 1, ".csv.gz": 1, ".parquet.gz": 1, ".log": 1}
    for _ in range(2):  # the second time from the disk
        corpus = prepare([str(tmp_path / "a")], tmp_path / "a" / "out", validation=[str(tmp_path / "v")])
        assert corpus.left_out == expected
    assert stored_documents(corpus, "train") == ["read from a"]
    manifest = json.loads((corpus.folder / "manifest.json").read_text())
    del manifest["left_out"]  # as those of earlier versions
    (corpus.folder / "manifest.json").write_text(json.dumps(manifest))
    assert open_corpus(corpus.folder).left_out == {}


def test_the_page_lists_every_ending() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert [
        ending for ending in sources._TEXT | sources._JSON_LINES | sources._PARQUET if f"`{ending}`" not in page
    ] == []


def test_what_an_interrupted_preparation_wrote_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the corpus lies in the folder it is made of."""
    (tmp_path / "some.txt").write_text("text")
    with monkeypatch.context() as patch:
        patch.delattr(writing.CorpusWriter, "finish")
        with pytest.raises(AttributeError):
            prepare([tmp_path], tmp_path / "out", validation=0)
    assert (tmp_path / "out" / "tokenizer" / "tokenizer.json").exists()
    assert prepare([tmp_path], tmp_path / "out", validation=0).left_out == {}


def test_paths_are_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is named like a source of another kind."""
    monkeypatch.chdir(tmp_path)
    Path("python").write_text("one")
    Path("b.md").write_text("two")
    corpus = prepare([Path("python")], Path("out"), validation=[Path("b.md")])
    assert [stored_documents(corpus, name) for name in ("train", "validation")] == [["one"], ["two"]]
    with pytest.raises(ValueError, match="must be a list with one source at least"):
        prepare(Path("b.md"), Path("other"))
    with pytest.raises(ValueError, match=r"validation='b.md' must be from 0 to 1, or a list of sources"):
        prepare([Path("python")], Path("other"), validation=Path("b.md"))


def make_records(folder: Path, kind: str) -> str:
    """Two documents, of which one has a set; as a source."""
    import pyarrow
    from pyarrow import parquet

    records = [{"text": TEXT, "meta": {"set": "books", "n": 1}}, {"text": "two", "meta": {"set": None, "n": 2}}]
    lines = "\n\n".join(json.dumps(record) for record in records).encode()  # no line end at the end, and an empty line
    path = folder / f"some.{kind}"
    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    elif kind == "hub":
        path = folder / "some"
        path.mkdir()
        (path / "train.jsonl").write_bytes(lines.replace(b"\n\n", b"\n"))
        return f"hf:{path}"
    else:
        packed = {"jsonl": lines, "jsonl.zst": zstandard.compress(lines), "ndjson.gz": gzip.compress(lines, mtime=0)}
        path.write_bytes(packed[kind])
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.zst", "ndjson.gz", "parquet", "hub"])
def test_records(tmp_path: Path, kind: str) -> None:
    """The set may lie within another field; where there is none, the source's name stands for it."""
    corpus = prepare([make_records(tmp_path, kind)], tmp_path / "out", validation=0, set_field="meta.set")
    assert stored_documents(corpus, "train") == [TEXT, "two"]
    assert [count.set for count in count_by_set(corpus.split("train"))] == ["books", "some"]


def test_a_dataset_that_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by its source, with config and split; and gone on with from the last shard that is full."""
    import datasets

    asked: list[object] = []

    def load_dataset(*arguments: object, **options: object) -> Iterator[dict[str, str]]:
        asked.append((arguments, options))
        for number in range(6):
            if number == 4 and len(asked) == 1:
                raise RuntimeError("no route to host")
            yield {"text": f"row {number}"}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(writing, "_BATCH_PIECES", 1)
    request = {"validation": 0, "shard_tokens": 6}
    with pytest.raises(
        OSError, match=r"the dataset hf:owner/some broke off .*no route to host.*; the same command goes on"
    ):
        prepare(["hf:owner/some:english:test"], tmp_path / "out", **request)
    corpus = prepare(["hf:owner/some:english:test"], tmp_path / "out", **request)
    assert stored_documents(corpus, "train") == [f"row {number}" for number in range(6)]
    assert asked == [(("owner/some", "english"), {"split": "test", "streaming": True})] * 2
    assert corpus.split("train").sets == ("some",)


def test_a_dataset_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load_dataset(*arguments: object, **options: object) -> None:
        raise FileNotFoundError("it does not exist")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match="the dataset hf:some cannot be loaded: it does not exist"):
        prepare(["hf:some"], tmp_path / "out")


def test_the_standard_library(tmp_path: Path) -> None:
    """Enough to train on, the same each time, without tests and what was installed."""
    corpus = prepare(["python"], tmp_path / "out")
    train, validation = (stored_documents(corpus, name) for name in ("train", "validation"))
    assert sum(map(len, train)) > 5_000_000
    assert 0 < len(validation) < 0.05 * len(train)
    everything = train + validation
    assert any("class JSONDecodeError" in text for text in everything)
    assert any(text.startswith('The "while" statement') for text in everything)  # of help("while")
    assert not any("import hypothesis" in text or "class TestCopy(" in text for text in everything)
    assert set(corpus.split("train").sets) == {"python", "python_help"}


# ---- What is refused, with its reason ----


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "there is no text in .*a.jsonl"),
        (b'{"text": ""}\n', {}, "there is no text in .*a.jsonl"),
        (b'{"text": "x"}\n{"text"\n', {}, "a.jsonl, line 2 is not JSON"),
        (b'\n["x"]\n', {}, "a.jsonl, line 2: this is list, not an object with a field 'text'"),
        (b'{"body": "x", "id": 1}', {}, "line 1: text_field='text' is not there; there are body, id"),
        (b'{"text": 3}', {}, "line 1: text_field='text' is int, not text"),
        (b'{"text": "x", "set": [1]}', {}, "line 1: set_field='set' is list, not text"),
        (
            b'{"text": "\xff"}',
            {},
            "a.jsonl, line 1 is not UTF-8: invalid start byte at byte 10 of it; errors='replace'",
        ),
        (b'{"text": "a\\ud800"}', {}, "line 1: character 1 is half a surrogate pair; errors='replace'"),
        (b'{"text": "x"}\n' + b'{"text": "' + b"x" * 99 + b'"}', {}, "a.jsonl, line 2: it is longer than 64 bytes"),
        (b'{"text": "x"}', {"validation": 1.5}, "validation=1.5 must be from 0 to 1"),
        (b'{"text": "x"}', {"validation": ["nope"]}, "source='nope' is neither a file nor a folder"),
        (b'{"text": "x"}', {"validation": 0.999999}, "all 1 documents fell to validation.* in another folder"),
        (b'{"text": "x"}', {"shard_tokens": 0}, "shard_tokens=0 must be positive"),
        (b'{"text": "x"}', {"errors": "ignore"}, "errors='ignore' must be one of strict, replace"),
        (b'{"text": "x"}', {"text_field": ""}, "text_field='' must name a field"),
        (b'{"text": "x"}', {"tokenizer": "nope.json"}, "tokenizer='nope.json' does not exist"),
    ],
)
def test_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, options: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(json_lines, "LINE", 64)
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare([str(tmp_path / "a.jsonl")], tmp_path / "out", **options)
    if (tmp_path / "out").exists():
        with pytest.raises(ValueError, match="is not finished"):
            open_corpus(tmp_path / "out")


def test_a_number_of_too_many_digits_is_named(tmp_path: Path) -> None:
    """Python reads no integers of so many."""
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "x"}\n' + b"9" * 5000)
    with pytest.raises(ValueError, match=r"a.jsonl, line 2 is not JSON: Exceeds the limit"):
        prepare([str(tmp_path / "a.jsonl")], tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"abc\xc3\x28", "a.txt is not UTF-8: invalid continuation byte at byte 3; errors='replace'"),
        ("a.txt", b"abc\xe2\x82", "a.txt is not UTF-8: unexpected end of data at byte 3"),
        ("a.parquet", b"PAR1", "a.parquet is not Parquet"),
        ("a.txt.gz", gzip.compress(b"x" * 99, mtime=0)[:-9], "a.txt.gz cannot be unpacked"),
        ("a.txt.zst", b"plain", "a.txt.zst cannot be unpacked"),
        ("a.docx", b"", "a.docx' must end in .c, "),
        ("a.parquet.gz", b"", "a.parquet.gz' must end in"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        prepare([str(tmp_path / name)], tmp_path / "out", validation=0)


def test_position_of_bad_bytes_counts_from_the_beginning(tmp_path: Path) -> None:
    """Also beyond what is read at once, with a character across the border."""
    (tmp_path / "a.txt").write_bytes(b"x" * (2**20 - 1) + "é".encode() + b"\xff")
    with pytest.raises(ValueError, match="at byte 1,048,577"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "out")


def test_bad_bytes_are_replaced_when_asked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\xffb")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "a\xffb"}\n{"text": "\\ud800\\ud83d\\ude42"}')
    sources = [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]
    corpus = prepare(sources, tmp_path / "out", validation=0, errors="replace")
    assert stored_documents(corpus, "train") == ["a\ufffdb", "a\ufffdb", "\ufffd🙂"]


def test_no_sources(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sources=\[\] must be a list with one source at least"):
        prepare([], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty' has no files that end in"):
        prepare([str(tmp_path / "empty")], tmp_path / "out")
    with pytest.raises(ValueError, match="source='hf:' must be hf:NAME"):
        prepare(["hf:"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_field_of_many_values_is_no_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_MOST_SETS", 3)
    source = write_json_lines(tmp_path / "a.jsonl", list("abcd"), list("wxyz"))
    with pytest.raises(ValueError, match="set_field='set' has more than 3 values"):
        prepare([source], tmp_path / "out")
    assert prepare([source], tmp_path / "out", set_field="none", validation=0).split("train").sets == ("a",)
