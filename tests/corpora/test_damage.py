"""A prepared corpus that is not what was written: cheaply found at opening, or by its checksums."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from corpus_cases import write_json_lines

from rebased.corpora import Corpus, open_corpus, prepare

FILES = [
    "train-00000.tokens",
    "train-00001.tokens",
    "train.documents",
    "validation-00000.tokens",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    source = write_json_lines(tmp_path / "a.jsonl", [f"document {number}" for number in range(20)])
    return prepare([source], tmp_path / "out", validation=0.3, shard_tokens=64)


@pytest.mark.parametrize("name", FILES)
def test_missing(corpus: Corpus, name: str) -> None:
    (corpus.folder / name).unlink()
    with pytest.raises(
        ValueError, match=f"{name} is missing; bring the file back, or delete .*out and prepare it anew"
    ):
        open_corpus(corpus.folder)


@pytest.mark.parametrize("name", FILES)
def test_truncated(corpus: Corpus, name: str) -> None:
    path = corpus.folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    message = f"{name} has {len(content) - 1:,} bytes and should have {len(content):,}; bring the file back"
    with pytest.raises(ValueError, match=message):
        open_corpus(corpus.folder)
    with pytest.raises(ValueError, match=message):
        corpus.check()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0, -1])
def test_one_bit(corpus: Corpus, name: str, place: int) -> None:
    """Opening does not see it; the check does."""
    path = corpus.folder / name
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} is damaged: its checksum is another; bring the file back"):
        open_corpus(corpus.folder).check()
    content[place] ^= 1
    path.write_bytes(content)
    open_corpus(corpus.folder).check()


def change(corpus: Corpus, edit: Callable[[dict], object]) -> None:
    path = corpus.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(dtype="uint32"), r"the shards of train hold .* tokens of uint32, and the manifest says"),
        (lambda m: m.update(dtype="float16"), "dtype='float16'; it must be one of uint16, uint32"),
        (
            lambda m: m.update(format="rebased corpus, version 9"),
            "format='rebased corpus, version 9', and this version",
        ),
        (lambda m: m.pop("sets"), r"manifest.json cannot be read \(no 'sets'\)"),
        (lambda m: m["splits"].pop("train"), r"no 'train'"),
        (lambda m: m["splits"]["train"]["shards"].pop(), "the shards of train hold"),
        (lambda m: m["splits"]["train"]["shards"][0].update(size=1), "has 128 bytes and should have 1"),
    ],
)
def test_manifest(corpus: Corpus, edit: Callable[[dict], object], message: str) -> None:
    change(corpus, edit)
    with pytest.raises(ValueError, match=message):
        open_corpus(corpus.folder)


def test_documents_that_fit_no_stream(corpus: Corpus) -> None:
    change(corpus, lambda m: m["splits"]["train"].update(num_documents=3))
    with pytest.raises(ValueError, match=r"train.documents tells of .* documents and .* tokens, the manifest of 3 and"):
        _ = open_corpus(corpus.folder).split("train").documents


def test_no_corpus(tmp_path: Path, corpus: Corpus) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*nope; `rebased data prepare` makes it"):
        open_corpus(tmp_path / "nope")
    with pytest.raises(ValueError, match="holds no prepared corpus"):
        open_corpus(tmp_path)
    (corpus.folder / "manifest.json").write_bytes(b"\xff{")
    with pytest.raises(ValueError, match=r"manifest.json cannot be read"):
        open_corpus(corpus.folder)


def test_splits_have_names(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="name='test' is no split; there are train, validation"):
        corpus.split("test")
    assert corpus.name == "out"
