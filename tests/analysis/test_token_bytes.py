"""Bytes that tokens stand for, of tokenizers that cut characters, normalise text, or know no bytes."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rebased.analysis.token_bytes import TokenBytes, bytes_of_tokens
from rebased.corpora import Corpus, byte_tokenizer, prepare

TEXTS = ["the cat sat on the mat", "東京, 東京都", "a cafe\u0301 and a café", "<|endoftext|> is a word here", "     "]


def byte_level(*, normalizer: normalizers.Normalizer | None = None) -> PreTrainedTokenizerFast:
    """Byte pairs of the texts, so few that tokens hold parts of characters, and one added token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=266, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_tokens(["cat"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def words() -> PreTrainedTokenizerFast:
    """Words, spaces dropped: no token knows all the bytes it stands for."""
    names = sorted({word for text in TEXTS for word in text.split()})
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0} | {name: i for i, name in enumerate(names, 1)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


TOKENIZERS = {
    "bytes": byte_tokenizer,
    "byte pairs": byte_level,
    "byte pairs of normalised text": lambda: byte_level(normalizer=normalizers.NFC()),
    "words": words,
}


def corpus_of(folder: Path, tokenizer: PreTrainedTokenizerFast) -> Corpus:
    tokenizer.save_pretrained(folder / "tokenizer")
    for name, texts in (("train", TEXTS[:1]), ("valid", TEXTS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources, validation = [str(folder / "train.jsonl")], [str(folder / "valid.jsonl")]
    return prepare(sources, folder / "corpus", tokenizer=str(folder / "tokenizer"), validation=validation)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_documents_have_all_their_bytes(name: str, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, TOKENIZERS[name]())
    split, token_bytes = corpus.split("validation"), TokenBytes(corpus, "validation")
    borders = [0, *split.documents.ends.tolist()]
    total = 0.0
    for document, text in enumerate(TEXTS):
        tokens = split.tokens(borders[document], borders[document + 1])
        found = token_bytes(document, tokens)
        assert found[-1] == 0
        if len(tokens) > 1:
            assert found.sum() == pytest.approx(len(text.encode()), abs=1e-9)
            # In parts they add up to the same.
            assert token_bytes(document, tokens[:2]).sum() + token_bytes(document, tokens[2:]).sum() == pytest.approx(
                found.sum()
            )
        total += found.sum()
    if name != "words":  # which make no token of the last text
        assert total == pytest.approx(split.num_bytes)


def test_an_end_of_text_has_none_whatever_the_tokenizer_says(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, byte_tokenizer())
    corpus = replace(corpus, manifest=replace(corpus.manifest, end_of_text=ord("t")))
    assert TokenBytes(corpus, "validation")(3, np.array([ord("t"), ord("h")])).tolist()[0] == 0


def test_parts_of_characters() -> None:
    """A token of the first byte of 東 has one byte, not the three of the sign that decoding writes for it."""
    tokenizer = byte_level()
    lengths = bytes_of_tokens(tokenizer, len(tokenizer))
    alone = [tokenizer.convert_tokens_to_ids(character) for character in ("æ", "Ŀ", "±")]  # e6 9d b1
    assert lengths[alone].tolist() == [1, 1, 1]
    assert lengths[tokenizer.convert_tokens_to_ids("cat")] == 3
    assert lengths[tokenizer.eos_token_id] == 0
    pieces = tokenizer("東京 a cat", add_special_tokens=False)["input_ids"]
    assert lengths[pieces].sum() == len("東京 a cat".encode())


def test_numbers_without_a_token_have_none() -> None:
    assert bytes_of_tokens(byte_tokenizer(), 300).tolist() == [*[1] * 256, *[0] * 44]


def test_words_alone() -> None:
    tokenizer = words()
    lengths = bytes_of_tokens(tokenizer, len(tokenizer))
    assert lengths[tokenizer.convert_tokens_to_ids("東京,")] == 7
    np.testing.assert_array_equal(lengths[[tokenizer.eos_token_id, tokenizer.unk_token_id]], 0)
