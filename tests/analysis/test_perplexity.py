"""Perplexities against their definition in float64, with all logits; what is refused before any work."""

import json
import math
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from evaluation_cases import DOCUMENTS, Token, make_corpus, perplexity_of, predicted_tokens, save_model
from rebased.analysis.evaluation import Evaluation, EvaluationConfig, Group
from rebased.analysis.perplexity import evaluate
from rebased.analysis.saved_model import load_saved_model
from rebased.corpora import Corpus, open_corpus, prepare

LENGTH = 150  # over the first bucket's end, and no divisor of anything
EXACT = {"rel": 1e-9}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: save_model(tmp_path_factory.mktemp(name), architecture=name) for name in ("rebased", "gpt2")}


def evaluated(folder: Path, corpus: Corpus, **options: Any) -> Evaluation:
    return evaluate(load_saved_model(folder), corpus, EvaluationConfig(**{"length": LENGTH} | options))


@pytest.mark.parametrize("recurrence", ["bigram", "token"])
@pytest.mark.parametrize("crossing", [True, False], ids=["crossing", "each document for itself"])
@pytest.mark.parametrize("architecture", ["rebased", "gpt2"])
def test_is_the_definition(
    architecture: str, crossing: bool, recurrence: str, corpus: Corpus, saved: dict[str, Path]
) -> None:
    found = evaluated(
        saved[architecture], corpus, crossing=crossing, recurrence=recurrence, batch_size=3, dtype="float64"
    )
    model = load_saved_model(saved[architecture]).model.double()
    tokens = list(chain.from_iterable(predicted_tokens(model, LENGTH, crossing=crossing)))
    check_group(found.whole, tokens, recurrence)
    sets = {kind for kind, _ in DOCUMENTS}
    assert {group.name for group in found.by_set} == sets
    for group in found.by_set:
        check_group(group, [token for token in tokens if token.document_set == group.name], recurrence)
    assert [group.name for group in found.by_position] == ["0-127", "128-149"]
    for group, places in zip(found.by_position, (range(128), range(128, LENGTH)), strict=True):
        check_group(group, [token for token in tokens if token.position in places], recurrence)
    assert found.num_bytes == sum(token.num_bytes for token in tokens)


def check_group(group: Group, tokens: list[Token], recurrence: str) -> None:
    kinds: dict[str, list[Token]] = {"all": tokens, "ar": [], "non_ar": []}
    for token in tokens:
        is_ar = token.is_pair if recurrence == "bigram" else token.was_there
        kinds["ar" if is_ar else "non_ar"].append(token)
    assert group.ar_fraction == pytest.approx(len(kinds["ar"]) / len(tokens), **EXACT)
    for kind, some in kinds.items():
        assert group.scores[kind].num_tokens == len(some)
        assert group.scores[kind].perplexity == pytest.approx(perplexity_of(some), **EXACT)
    nats, num_bytes = sum(token.loss for token in tokens), sum(token.num_bytes for token in tokens)
    assert group.bits_per_byte == pytest.approx(nats / math.log(2) / num_bytes, **EXACT)


def test_the_error_is_that_of_leaving_out_windows(corpus: Corpus, saved: dict[str, Path]) -> None:
    found = evaluated(saved["rebased"], corpus, dtype="float64").whole.scores
    windows = predicted_tokens(load_saved_model(saved["rebased"]).model.double(), LENGTH, crossing=True)
    for kind, chosen in (("all", (True, False)), ("ar", (True,)), ("non_ar", (False,))):
        rows = [[token for token in window if token.is_pair in chosen] for window in windows]
        without = [perplexity_of([*chain(*rows[:i], *rows[i + 1 :])]) for i in range(len(rows))]
        mean = sum(without) / len(without)
        variance = (len(rows) - 1) / len(rows) * sum((each - mean) ** 2 for each in without)
        assert found[kind].standard_error == pytest.approx(math.sqrt(variance), rel=1e-6)


@torch.no_grad()
def test_is_the_loss_of_transformers(corpus: Corpus, saved: dict[str, Path]) -> None:
    found = evaluated(saved["gpt2"], corpus, length=100)
    stream = [token for _, text in DOCUMENTS for token in (*text.encode(), 256)]
    rows = torch.tensor([stream[start : start + 100] for start in range(0, len(stream) - 99, 100)])
    expected = load_saved_model(saved["gpt2"]).model(rows, labels=rows).loss
    assert found.num_windows == len(rows) > 5
    assert found.whole.scores["all"].loss == pytest.approx(float(expected), rel=1e-5)


def test_batches_do_not_matter_and_nothing_varies(corpus: Corpus, saved: dict[str, Path]) -> None:
    first, again, others = (evaluated(saved["rebased"], corpus, batch_size=size).to_json() for size in (1, 1, 4))
    assert first | {"seconds": 0} == again | {"seconds": 0}
    assert others["perplexity"] == pytest.approx(first["perplexity"], rel=1e-5)


@pytest.mark.parametrize(("dtype", "least", "most"), [("float32", 1e-12, 1e-6), ("bfloat16", 1e-5, 3e-3)])
def test_products_of_less_precision(
    dtype: str, least: float, most: float, corpus: Corpus, saved: dict[str, Path]
) -> None:
    """Measured: 2e-8 and 8e-4."""
    exact, found = (evaluated(saved["rebased"], corpus, dtype=each).to_json() for each in ("float64", dtype))
    errors = [abs(found["perplexity"][kind] / exact["perplexity"][kind] - 1) for kind in ("all", "ar", "non_ar")]
    assert least < max(errors) < most


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-9), ("float32", 1e-5), ("bfloat16", 0.01)])
@pytest.mark.parametrize("crossing", [True, False], ids=["crossing", "each document for itself"])
@pytest.mark.parametrize("architecture", ["rebased", "gpt2"])
def test_on_a_gpu(
    architecture: str, crossing: bool, dtype: str, error: float, corpus: Corpus, saved: dict[str, Path]
) -> None:
    expected = evaluated(saved[architecture], corpus, crossing=crossing, dtype="float64").to_json()
    config = EvaluationConfig(length=LENGTH, crossing=crossing, dtype=dtype, batch_size=3)
    found = evaluate(load_saved_model(saved[architecture]), corpus, config, device="cuda").to_json()
    assert found["perplexity"] == pytest.approx(expected["perplexity"], rel=error)
    assert found["num_tokens"] == expected["num_tokens"]


def test_the_models_positions_are_the_default(corpus: Corpus, saved: dict[str, Path]) -> None:
    found = evaluated(saved["rebased"], corpus, length=None)
    assert found.config.length == 300
    assert [group.name for group in found.by_position] == ["0-127", "128-255", "256-299"]


def test_the_length_of_training_comes_first(corpus: Corpus, tmp_path: Path) -> None:
    save_model(tmp_path, positions=300)
    (tmp_path / "training.json").write_text('{"config": {"seq_len": 60}}')
    assert evaluated(tmp_path, corpus, length=None).config.length == 60
    assert evaluated(tmp_path, corpus, length=200).config.length == 200


def test_a_model_without_positions_takes_any_length(corpus: Corpus, tmp_path: Path) -> None:
    save_model(tmp_path, positions=40, position_embedding_type="none")
    assert evaluated(tmp_path, corpus, length=200).num_windows == 1099 // 200
    assert evaluated(tmp_path, corpus, length=None).num_windows == 1099 // 40


def test_few_windows_are_spread(corpus: Corpus, saved: dict[str, Path]) -> None:
    """Of ten windows of 109 tokens the first, fourth and seventh."""
    found = evaluated(saved["rebased"], corpus, length=109, max_windows=3, dtype="float64")
    model = load_saved_model(saved["rebased"]).model.double()
    windows = predicted_tokens(model, 109, crossing=True)
    assert len(windows) == 10
    check_group(found.whole, [*windows[0], *windows[3], *windows[6]], "bigram")
    assert evaluated(saved["rebased"], corpus, length=109, max_windows=99).num_windows == 10


def test_one_window_has_no_error(corpus: Corpus, saved: dict[str, Path]) -> None:
    found = evaluated(saved["rebased"], corpus, max_windows=1)
    assert found.whole.scores["all"].standard_error is None
    assert found.whole.scores["all"].perplexity is not None


# ---- What does not fit ----


def no_work(_: Any) -> None:
    pytest.fail("work was begun")


def give_other_tokenizer(folder: Path) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(["cat"])
    tokenizer.save_pretrained(folder)


def take_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (give_other_tokenizer, {}, "the tokenizer saved with the model is not the corpus's"),
        (None, {"length": 301}, "length=301 is more than the model's 300 positions"),
        (None, {"split": "test"}, "'test' is no split; there are train, validation"),
        (None, {"split": "train"}, "train has 261 tokens, no window of length=300; a length up to 261 would do"),
    ],
    ids=["another tokenizer", "too long", "no split", "too short a split"],
)
def test_what_does_not_fit_ends_before_any_work(
    change: Callable[[Path], None] | None,
    options: dict[str, Any],
    message: str,
    corpus: Corpus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_model(tmp_path)
    if change is not None:
        change(tmp_path)
    monkeypatch.setattr("rebased.analysis.perplexity.TokenLosses", no_work)
    with pytest.raises(ValueError, match=message):
        evaluated(tmp_path, corpus, **{"length": 300} | options)


def test_nothing_was_held_out(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat")
    empty = prepare([tmp_path / "text.txt"], tmp_path / "corpus", validation=0.0)
    for crossing in (True, False):
        with pytest.raises(ValueError, match="validation has no tokens: there is nothing to predict"):
            evaluated(save_model(tmp_path / "model"), empty, crossing=crossing)


def test_too_small_a_vocabulary(corpus: Corpus, tmp_path: Path) -> None:
    take_tokenizer(save_model(tmp_path, vocab_size=256))
    with pytest.raises(ValueError, match="tokens up to 256, and the model only 256 embeddings"):
        evaluated(tmp_path, corpus)


def test_without_a_tokenizer_there_is_a_note(corpus: Corpus, saved: dict[str, Path], tmp_path: Path) -> None:
    take_tokenizer(save_model(tmp_path))
    found, usual = evaluated(tmp_path, corpus), evaluated(saved["rebased"], corpus)
    assert found.whole == usual.whole
    assert usual.notes == ()
    assert "no tokenizer was saved with the model" in found.notes[0]


def test_losses_that_are_no_numbers(corpus: Corpus, tmp_path: Path) -> None:
    save_model(tmp_path)
    loaded = load_saved_model(tmp_path)
    loaded.model.model.backbone.norm.weight.data.fill_(math.nan)
    with pytest.raises(ValueError, match="window 0 of validation has losses that are not finite"):
        evaluate(loaded, corpus, EvaluationConfig())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 1}, "length=1 must be at least 2"),
        ({"length": 0}, "length=0 must be at least 1"),
        ({"max_windows": 0}, "max_windows=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"recurrence": "trigram"}, "recurrence='trigram' is unknown"),
        ({"dtype": "int8"}, "dtype='int8' is unknown; it may be 'float32', 'bfloat16', 'float64'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvaluationConfig(**options)


# ---- Checkpoints ----


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lose_a_weight(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.backbone.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_width(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 32}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_weights, "has no model that can be loaded"),
        (lose_a_weight, "lacks weights of its model, or has them in other shapes: model.backbone.norm.weight"),
        (change_width, "has no model that can be loaded|lacks weights of its model"),
        (lambda folder: (folder / "config.json").write_text("{"), "has no model that can be loaded"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model that can be loaded"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "has no model that can be loaded"),
        (lambda folder: (folder / "training.json").write_text("{"), "cannot read .*training.json"),
        (lambda folder: (folder / "training.json").write_text("[]"), "training.json holds no JSON object"),
    ],
    ids=["cut", "a weight lost", "other sizes", "config", "no weights", "tokenizer", "training", "training of a list"],
)
def test_broken_checkpoints(damage: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    damage(save_model(tmp_path))
    with pytest.raises(ValueError, match=message):
        load_saved_model(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        load_saved_model(tmp_path / "none")


def test_parameters_are_counted_once(saved: dict[str, Path]) -> None:
    loaded = load_saved_model(saved["gpt2"])
    assert loaded.num_parameters == loaded.model.num_parameters()
    assert loaded.training == {}


def test_the_corpus_may_be_opened_anew(corpus: Corpus, saved: dict[str, Path]) -> None:
    assert evaluated(saved["rebased"], open_corpus(corpus.folder)).whole == evaluated(saved["rebased"], corpus).whole
