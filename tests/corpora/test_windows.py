"""Windows over a split, against their definition written out token by token."""

import pickle
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from corpus_cases import END, all_tokens, write_json_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from rebased.corpora import Split, Windows, open_corpus, packing, prepare
from rebased.corpora.packing import pack
from rebased.corpora.windows import spread
from rebased.training.language.batches import collate_packed


def make_split(folder: Path, lengths: list[int]) -> Split:
    """Documents of so many tokens, the last of which is end-of-text; their bytes tell which is which."""
    documents = [chr(ord("A") + number % 26) * (length - 1) for number, length in enumerate(lengths)]
    source = write_json_lines(folder / "a.jsonl", [*documents, "x"])
    return prepare([source], folder / "out", validation=0, shard_tokens=11).split("train")


lengths = st.lists(st.integers(1, 20), max_size=12)


@settings(max_examples=25)
@given(lengths=lengths, length=st.integers(1, 25))
def test_crossing(lengths: list[int], length: int) -> None:
    with TemporaryDirectory() as name:
        split = make_split(Path(name), lengths)
        stream = all_tokens(split)
        owners = np.repeat(np.arange(split.num_documents), split.documents.lengths)
        if len(stream) < length:
            with pytest.raises(ValueError, match=f"train has {len(stream)} tokens, no window of length={length}; "):
                Windows(split, length)
            return
        windows = Windows(split, length)
        assert len(windows) == len(stream) // length
        for index in range(len(windows)):
            window = windows[index]
            assert list(window) == ["input_ids", "labels"]
            assert {column.dtype for column in window.values()} == {torch.int64}
            assert window["labels"].tolist() == [-100, *window["input_ids"].tolist()[1:]]
            assert window["input_ids"].tolist() == stream[index * length : (index + 1) * length]
            assert all(start < stop for _, start, stop in windows.source(index))
            told = [document for document, start, stop in windows.source(index) for _ in range(start, stop)]
            assert told == owners[index * length : (index + 1) * length].tolist()


@settings(max_examples=25)
@given(lengths=lengths, length=st.integers(1, 25))
def test_packed(lengths: list[int], length: int) -> None:
    """Every token of every document once, whole or in window-long pieces of long ones; the rest is padding."""
    with TemporaryDirectory() as name:
        split = make_split(Path(name), lengths)
        windows = Windows(split, length, crossing=False)
        documents = np.split(np.array(all_tokens(split)), split.documents.ends[:-1])
        seen: dict[int, list[tuple[int, list[int]]]] = {number: [] for number in range(len(documents))}
        for index in range(len(windows)):
            window = {name: column.tolist() for name, column in windows[index].items()}
            assert set(window) == {"input_ids", "position_ids", "labels"}
            assert {column.dtype for column in windows[index].values()} == {torch.int64}
            tokens, positions, labels = [], [], []
            parts = windows.source(index)
            assert parts
            assert [part.document for part in parts] == sorted(part.document for part in parts)
            for number, start, stop in parts:
                assert start == len(tokens)
                seen[number].append((index, window["input_ids"][start:stop]))
                tokens += window["input_ids"][start:stop]
                positions += range(stop - start)
                labels += [-100, *window["input_ids"][start + 1 : stop]]
            empty = length - len(tokens)
            assert window["input_ids"] == tokens + [END] * empty
            assert window["position_ids"] == [*positions, *range(empty)]
            assert window["labels"] == labels + [-100] * empty
        for number, document in enumerate(documents):
            pieces = [piece for _, piece in sorted(seen[number], key=lambda entry: -len(entry[1]))]
            assert list(chain.from_iterable(pieces)) == document.tolist()
            assert [len(piece) for piece in pieces[:-1]] == [length] * (len(pieces) - 1)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=200), window=st.integers(1, 40), buffer=st.integers(1, 99)
)
def test_packing_is_tight_and_ordered(lengths: list[int], window: int, buffer: int) -> None:
    ends = np.cumsum(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_BUFFER", buffer)
        found = pack(ends, window)
    positions = [
        position
        for start, size in zip(found.starts, found.lengths, strict=True)
        for position in range(start, start + size)
    ]
    assert sorted(positions) == list(range(ends[-1]))
    assert all(found.starts + found.lengths <= ends[found.documents])
    assert found.lengths.max() <= window
    filled = np.add.reduceat(found.lengths, found.borders[:-1])
    assert filled.max() <= window
    # Two windows of one buffer that would fit into one would have been one. A buffer's end closes its windows.
    num_buffers = -(-len(found.lengths) // buffer)
    assert (filled <= window // 2).sum() <= num_buffers
    firsts = found.starts[found.borders[:-1]]
    assert num_buffers > 1 or (np.diff(firsts) > 0).all()
    assert all((np.diff(found.starts[a:b]) > 0).all() for a, b in pairwise(found.borders))


def test_best_fit_by_hand() -> None:
    """Of 7, 5, 3, 2, 2, 1 in windows of 10: 7 with 3, 5 with 2 and 2 and 1."""
    found = pack(np.cumsum([2, 5, 3, 7, 2, 1]), 10)
    assert found.borders.tolist() == [0, 4, 6]
    assert found.documents.tolist() == [0, 1, 4, 5, 2, 3]


def test_real_lengths_leave_little_empty() -> None:
    lengths = np.random.default_rng(0).lognormal(6, 1.5, 20_000).astype(np.int64) + 1
    found = pack(np.cumsum(lengths), 1024)
    assert lengths.sum() / (found.num_windows * 1024) > 0.99


def test_in_other_processes(tmp_path: Path) -> None:
    """A split is sent as the name of its folder, and windows give the same there."""
    split = make_split(tmp_path, [5, 30, 2, 9] * 50)
    assert len(pickle.dumps(split)) < 500
    for crossing in (True, False):
        windows = Windows(split, 16, crossing=crossing)
        sent = pickle.loads(pickle.dumps(windows))
        assert len(sent) == len(windows) > 30
        for index in range(len(windows)):
            assert sent.source(index) == windows.source(index)
            for name, column in windows[index].items():
                assert torch.equal(sent[index][name], column)


def test_bounds(tmp_path: Path) -> None:
    split = make_split(tmp_path, [5, 6])
    windows = Windows(split, 4)
    assert torch.equal(windows[-1]["input_ids"], windows[2]["input_ids"])
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"index={index} is outside of 3 windows"):
            windows[index]
    with pytest.raises(ValueError, match="length=0 must be positive"):
        Windows(split, 0)
    for start, stop in ((-1, 2), (3, 2), (0, 14)):
        with pytest.raises(ValueError, match=f"start={start}, stop={stop} must be ordered and within 0 and 13"):
            split.tokens(start, stop)
    assert split.tokens(13, 13).tolist() == []
    message = "train has 13 tokens, no window of length=14; a length up to 13 would do, or crossing=False"
    with pytest.raises(ValueError, match=message):
        Windows(split, 14)
    assert [len(Windows(split, 13)), len(Windows(split, 14, crossing=False))] == [1, 1]
    nothing = open_corpus(split.folder).split("validation")
    assert [len(Windows(nothing, 4, crossing=crossing)) for crossing in (True, False)] == [0, 0]


def test_some_windows_are_spread_over_all() -> None:
    found = spread(533, 64)
    assert found[:3] == [0, 8, 16]
    assert found[-1] == 524
    assert found == sorted(set(found))
    assert spread(5, 64) == spread(5, None) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("crossing", "batch_size", "collator"),
    [(True, 4, None), (False, 1, None), (False, 4, collate_packed)],
    ids=["crossing", "packed, one by one", "packed and joined"],
)
def test_a_trainer_takes_them(
    tmp_path: Path, crossing: bool, batch_size: int, collator: Callable[..., Any] | None
) -> None:
    """As they are; several packed ones are several rows, and must be joined."""
    from transformers import Trainer, TrainingArguments

    from rebased.hf import RebasedForCausalLM, preset

    windows = Windows(make_split(tmp_path, [20] * 12), 16, crossing=crossing)
    model = RebasedForCausalLM(preset("rebased-small", vocab_size=257, hidden_size=16, num_attention_heads=2))
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=1,
        per_device_train_batch_size=batch_size,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
    )
    trained = Trainer(model=model, args=arguments, train_dataset=windows, data_collator=collator).train()
    assert 4 < trained.training_loss < 8
