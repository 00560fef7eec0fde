"""The parts of training: order, batches, records, FLOPs, shares of validation."""

import math
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_cases import corpus, small_options, small_run
from typing_extensions import override

from rebased.corpora import Windows
from rebased.hf import RebasedConfig
from rebased.layers import MIXERS
from rebased.models import LanguageModel, LayerConfig, ModelConfig
from rebased.training.boards import TensorBoard
from rebased.training.language.batches import collate, collate_packed, num_targets
from rebased.training.language.config import steps_for
from rebased.training.language.flops import flops_per_token, peak_flops
from rebased.training.language.job import plan_job
from rebased.training.language.layout import TrainingProcesses
from rebased.training.language.metrics import MetricsFile, StepRecord, read_metrics
from rebased.training.language.model_config import read_changes
from rebased.training.language.order import Order
from rebased.training.language.records import open_records
from rebased.training.language.trainer import check_overrides
from rebased.training.language.validation import shares, validation_loss

# ---- Order ----


def test_every_pass_has_every_window_in_an_order_of_its_own() -> None:
    order = Order(range(50), seed=3, num_sequences=150)
    passes = [[order.window(index) for index in range(start, start + 50)] for start in (0, 50, 100)]
    assert all(sorted(each) == list(range(50)) for each in passes)
    assert len({tuple(each) for each in [*passes, range(50)]}) == 4
    assert len(order) == 150


def test_order_depends_on_nothing_but_seed_and_index() -> None:
    forwards = Order(range(50), seed=3, num_sequences=150)
    backwards = Order(range(50), seed=3, num_sequences=9999)
    expected = [forwards[index] for index in range(150)]
    assert [backwards[index] for index in reversed(range(150))] == expected[::-1]
    other = Order(range(50), seed=4, num_sequences=150)
    assert [other[index] for index in range(150)] != expected


def test_the_order_is_fixed() -> None:
    """A run that is gone on with by a later version must find the same one."""
    assert [Order(range(10), seed=0, num_sequences=10)[index] for index in range(10)] == [0, 7, 8, 6, 9, 5, 1, 3, 2, 4]


# ---- Batches ----


def test_crossing_batches() -> None:
    windows = Windows(corpus().split("train"), 32)
    batch = collate([windows[index] for index in range(3)])
    assert batch["input_ids"].shape == (3, 32)
    assert (batch["labels"][:, 0] == -100).all()
    assert torch.equal(batch["labels"][:, 1:], batch["input_ids"][:, 1:])
    assert num_targets(batch) == 3 * 31


def test_packed_batches() -> None:
    """Borders are where documents and windows begin, and only what follows in a document is predicted."""
    windows = Windows(corpus().split("train"), 700, crossing=False)
    rows = [windows[index] for index in range(2)]
    batch = collate_packed(rows)
    assert batch["input_ids"].shape == batch["labels"].shape == (1, 1400)
    borders = batch["cu_seqlens"].tolist()
    assert borders[0] == 0
    assert 700 in borders
    assert borders[-1] == 1400
    for start, stop in pairwise(borders):
        tokens, labels = batch["input_ids"][0, start:stop], batch["labels"][0, start:stop]
        assert labels[0] == -100
        assert (labels[1:] == -100).all() or torch.equal(labels[1:], tokens[1:])
    assert num_targets(batch) == sum(int((row["labels"] != -100).sum()) for row in rows)


# ---- Records ----


def test_lines_are_json_whatever_the_numbers(tmp_path: Path) -> None:
    """JSON has neither infinity nor NaN; `rebased.runs` writes null for them, too."""
    record = StepRecord(
        step=1,
        loss=2.0,
        learning_rate=0.1,
        grad_norm=math.inf,
        tokens=3,
        tokens_per_second=4.0,
        validation_loss=math.nan,
    )
    metrics = MetricsFile(tmp_path, last_step=0)
    metrics.add(record)
    metrics.close()
    assert "Infinity" not in (tmp_path / "metrics.jsonl").read_text()
    (line,) = read_metrics(tmp_path)
    assert line == record.to_dict() | {"grad_norm": None, "validation_loss": None}
    before = (tmp_path / "metrics.jsonl").read_text()
    MetricsFile(tmp_path, last_step=1).close()
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_runs_in_folders_of_one_name_are_apart_in_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second would go on with the first one's curves."""
    told: list[dict[str, Any]] = []

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            told.append({"step": step} | values)

        def finish(self) -> None:
            pass

    def init(**settings: Any) -> Run:
        told.append(settings)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, __spec__=object()))
    record = StepRecord(step=1, loss=2.0, learning_rate=0.1, grad_norm=1.0, tokens=3, tokens_per_second=4.0)
    options = small_options(wandb_project="p")
    outs = {seed: tmp_path / f"seed{seed}" / "model" for seed in (0, 1)}
    jobs = [plan_job(small_run(seed=seed), corpus(), outs[seed], options) for seed in (0, 0, 1)]
    for job in jobs:
        with open_records(job, 0) as records:
            records.write(record)
    assert told[1::2] == [record.to_dict()] * 3
    names = [settings["id"] for settings in told[::2]]
    assert names[0] == names[1] != names[2]
    assert all(name.startswith("model-") for name in names)


def test_what_is_open_is_closed_if_weights_and_biases_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[str]()

    def refuse(**_: Any) -> None:
        raise RuntimeError("not logged in")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=refuse, __spec__=object()))
    for each in (MetricsFile, TensorBoard):

        def close(self: Any, finished: str | None = None, close: Any = each.close) -> None:
            close(self)
            closed.append(type(self).__name__)

        monkeypatch.setattr(each, "close", close)
    job = plan_job(small_run(), corpus(), tmp_path / "run", small_options(board=True, wandb_project="p"))
    with pytest.raises(RuntimeError, match="not logged in"), open_records(job, 0):
        pass
    assert sorted(closed) == ["MetricsFile", "TensorBoard"]


# ---- FLOPs ----


def model_of(mixer: str, **options: int) -> LanguageModel:
    layer = LayerConfig(mixer=mixer, options=options, after="mlp")
    return LanguageModel(ModelConfig(d_model=8, seq_len=16, layers=(layer,), vocab_size=32))


def used_parameters(model: LanguageModel) -> int:
    return sum(x.numel() for name, x in model.named_parameters() if not name.startswith("position_embedding"))


def test_flops_of_softmax_attention() -> None:
    """At T tokens (T + 1) / 2 are seen on average: 2·d for the score and 2·d for the sum, of each."""
    model = model_of("attention", num_heads=2)
    assert flops_per_token(model, 16) == 6 * used_parameters(model) + 3 * 4 * 8 * 17 // 2
    window = model_of("attention", num_heads=2, window=4)
    seen = (1 + 2 + 3 + 13 * 4) / 16
    assert flops_per_token(window, 16) == 6 * used_parameters(window) + round(3 * 4 * 8 * seen)


@pytest.mark.parametrize(("mixer", "num_features"), [("rebased", 10), ("based", 1 + 4 + 10)])
def test_flops_of_kernel_attention(mixer: str, num_features: int) -> None:
    """2 heads of 4 values: features × values, a product and a sum, into the state and out of it; at any length."""
    model = model_of(mixer, num_heads=2, feature_dim=4, head_dim=4)
    expected = 6 * used_parameters(model) + 3 * (2 + 2) * (2 * num_features * 4)
    assert flops_per_token(model, 16) == flops_per_token(model, 4096) == expected


@pytest.mark.parametrize("name", MIXERS)
def test_flops_of_every_mixer(name: str) -> None:
    sizes = {"vocab_size": 32, "hidden_size": 24, "num_attention_heads": 4, "feature_dim": 4}
    config = RebasedConfig(layer_types=[name], num_hidden_layers=1, max_position_embeddings=16, **sizes)
    model = LanguageModel(config.to_model_config())
    assert flops_per_token(model, 16) >= 6 * used_parameters(model)


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H200", "bfloat16", 989.5e12),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA H200", "float32", None),
        ("cpu", "bfloat16", None),
    ],
)
def test_peaks(name: str, dtype: str, peak: float | None) -> None:
    assert peak_flops(name, dtype) == peak


# ---- Shares ----


@given(num_sequences=st.integers(1, 70), batch_size=st.integers(1, 9), count=st.integers(1, 9))
def test_shares(num_sequences: int, batch_size: int, count: int) -> None:
    """Each sequence once, in as many batches for every process."""
    found = [shares(num_sequences, batch_size, TrainingProcesses(rank, count, True)) for rank in range(count)]
    assert [index for batches in found for batch in batches for index in batch] == list(range(num_sequences))
    assert len({len(batches) for batches in found}) == 1
    assert max(len(batch) for batches in found for batch in batches) <= batch_size
    assert len(found[0]) == -(-max(sum(map(len, batches)) for batches in found) // batch_size)


def test_a_process_without_sequences_counts_nothing() -> None:
    """But its model runs: a sharded one waits for all processes."""
    calls: list[int] = []

    class Model(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **_: Any) -> Any:
            calls.append(len(input_ids))
            return SimpleNamespace(loss=input_ids.sum().float())

    windows = [{"input_ids": torch.tensor([i, i]), "labels": torch.tensor([i, i])} for i in range(1, 6)]
    sums = []

    def gather_sum(x: torch.Tensor) -> torch.Tensor:
        sums.append(x.tolist())
        return x + 1  # of others

    for batches in ([range(3), range(3, 5)], [range(5, 5)]):
        validation_loss(Model(), windows, batches, collate, device=torch.device("cpu"), gather_sum=gather_sum)
    assert calls == [3, 2, 1]
    assert sums == [[30.0, 5.0], [0.0, 0.0]]


# ---- Numbers from the command line ----


def test_steps_for_tokens() -> None:
    assert [steps_for(n, batch_size=4, seq_len=8) for n in (1, 32, 33)] == [1, 1, 2]


def test_settings() -> None:
    settings = ["hidden_size=64", 'layer_types=["rebased"]', "position_embedding_type=none", "tie_word_embeddings=true"]
    assert read_changes(settings) == {
        "hidden_size": 64,
        "layer_types": ["rebased"],
        "position_embedding_type": "none",
        "tie_word_embeddings": True,
    }


def test_a_method_that_transformers_has_renamed_is_named() -> None:
    class Base:
        def log(self) -> None: ...

    class Ours(Base):
        @override
        def log(self) -> None: ...

    check_overrides(Ours)
    del Base.log
    with pytest.raises(ImportError, match=r"transformers has no Trainer\.log, which rebased relies on"):
        check_overrides(Ours)
