"""Tokenizers: bytes that come back as they were, hashes that tell them apart, and documents tokenised as wholes."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from corpus_cases import SPECIAL, all_tokens, texts, write_json_lines
from hypothesis import given
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from rebased.corpora import byte_tokenizer, hash_tokenizer, pieces, prepare
from rebased.corpora.encoding import Encoder, load_tokenizer

PROSE = "The quick brown fox jumps over the lazy dog.\n\nIt isn't 12 o'clock; it's 1 o'clock.\n"


@pytest.fixture(scope="module")
def word_pieces(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of the library tokenizers: byte-level BPE, as GPT-2 has it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[SPECIAL], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([PROSE] * 20, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "small.json"
    backend.save(str(path))
    return str(path)


@given(texts)
def test_bytes_come_back(text: str) -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    (tokens,) = Encoder(tokenizer)([text])
    assert tokens.tolist() == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_byte_tokenizer_for_others(tmp_path: Path) -> None:
    """As transformers and its friends take it, after a save too."""
    tokenizer = byte_tokenizer()
    assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id) == (257, *[256] * 3)
    assert tokenizer.encode("é" + SPECIAL) == [0xC3, 0xA9, 256]
    assert tokenizer.decode([104, 105, 256], skip_special_tokens=True) == "hi"
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    batch = loaded(["hi", "é 🙂"], padding=True, return_tensors="np")
    assert batch["attention_mask"].sum(axis=1).tolist() == [2, 7]
    assert hash_tokenizer(loaded) == hash_tokenizer(tokenizer)


def test_hash_is_of_the_content(tmp_path: Path, word_pieces: str) -> None:
    """The same from a file, a saved folder, beside a model, after use, and from the corpus; another for another."""
    from rebased.hf import preset

    tokenizer = load_tokenizer(word_pieces)
    name = hash_tokenizer(tokenizer)
    tokenizer(["a", "bb"], padding=True, truncation=True, max_length=1)
    assert hash_tokenizer(tokenizer) == name
    tokenizer.save_pretrained(tmp_path / "model")
    preset("rebased-small").save_pretrained(tmp_path / "model")
    assert hash_tokenizer(AutoTokenizer.from_pretrained(tmp_path / "model")) == name
    corpus = prepare(
        [write_json_lines(tmp_path / "a.jsonl", ["a"])], tmp_path / "out", tokenizer=str(tmp_path / "model")
    )
    assert corpus.tokenizer_hash == hash_tokenizer(corpus.tokenizer()) == name

    assert hash_tokenizer(byte_tokenizer()) != name
    content = json.loads(Path(word_pieces).read_text())
    content["model"]["merges"].reverse()
    (tmp_path / "other.json").write_text(json.dumps(content))
    assert hash_tokenizer(load_tokenizer(str(tmp_path / "other.json"))) != name
    tokenizer.eos_token = "a"
    assert hash_tokenizer(tokenizer) != name


def test_words_are_tokenised_as_the_tokenizer_does(
    tmp_path: Path, word_pieces: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document's tokens are those of the whole, though it is tokenised in pieces; and nothing in it ends it."""
    monkeypatch.setattr(pieces, "PIECE", 120)
    documents = [PROSE * 20, "one", f"in {SPECIAL} between", ""]
    source = write_json_lines(tmp_path / "a.jsonl", documents)
    corpus = prepare([source], tmp_path / "out", tokenizer=word_pieces, validation=0)
    backend = Tokenizer.from_file(word_pieces)
    backend.encode_special_tokens = True
    end = backend.token_to_id(SPECIAL)
    expected = [[*backend.encode(text).ids, end] for text in documents]
    assert all_tokens(corpus.split("train")) == list(chain.from_iterable(expected))
    assert len(expected[0]) < 0.7 * len(documents[0])
    assert (corpus.vocab_size, corpus.end_of_text, corpus.manifest.dtype) == (backend.get_vocab_size(), end, "uint16")
    assert corpus.tokenizer().decode(expected[2][:-1]) == documents[2]


def test_documents_are_neither_cut_nor_padded(tmp_path: Path, word_pieces: str) -> None:
    """Whatever the tokenizer's file says: many were saved by those who did both."""
    plain = Tokenizer.from_file(word_pieces)
    expected = [[*plain.encode(text).ids, plain.token_to_id(SPECIAL)] for text in (PROSE, "a")]
    plain.enable_truncation(3)
    plain.enable_padding(length=5)
    plain.save(str(tmp_path / "cutting.json"))
    source = write_json_lines(tmp_path / "a.jsonl", [PROSE, "a"])
    corpus = prepare([source], tmp_path / "out", tokenizer=str(tmp_path / "cutting.json"), validation=0)
    assert all_tokens(corpus.split("train")) == list(chain.from_iterable(expected))
    assert corpus.tokenizer_hash == hash_tokenizer(load_tokenizer(word_pieces))


@pytest.mark.parametrize(("num_words", "dtype"), [(2**16 - 1, "uint16"), (2**16, "uint32")])
def test_wide_vocabularies(tmp_path: Path, num_words: int, dtype: str) -> None:
    words = {f"w{number}": number for number in range(num_words)}
    backend = Tokenizer(models.WordLevel(words | {SPECIAL: num_words}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "words.json"))
    source = write_json_lines(tmp_path / "a.jsonl", [f"w1 w{num_words - 1}"])
    corpus = prepare([source], tmp_path / "out", tokenizer=str(tmp_path / "words.json"), validation=0)
    assert corpus.manifest.dtype == dtype
    assert (tmp_path / "out" / "train-00000.tokens").stat().st_size == 3 * np.dtype(dtype).itemsize
    assert all_tokens(corpus.split("train")) == [1, num_words - 1, num_words]
    assert corpus.vocab_size == num_words + 1


def test_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a.json' is no file of the library tokenizers"):
        load_tokenizer(str(tmp_path / "a.json"))
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "b.json"))
    with pytest.raises(ValueError, match=r"b.json' has no end-of-text token; give it an eos_token, or one of <\|endof"):
        load_tokenizer(str(tmp_path / "b.json"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty' cannot be loaded"):
        load_tokenizer(str(tmp_path / "empty"))


def test_reading_needs_no_library_of_text(tmp_path: Path) -> None:
    """A corpus is read where only numpy and torch are."""
    prepare([write_json_lines(tmp_path / "a.jsonl", ["abc"])], tmp_path / "out", validation=0)
    script = (
        "import sys; from pathlib import Path; from rebased.corpora import open_corpus, Windows; "
        f"corpus = open_corpus(Path({str(tmp_path / 'out')!r})); corpus.check(); "
        "print(Windows(corpus.split('train'), 4, crossing=False)[0]['input_ids'].tolist()); "
        "print({'transformers', 'tokenizers', 'datasets', 'pyarrow', 'zstandard'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["[97, 98, 99, 256]", "set()"]
