"""A model of bytes in lm_eval's stock `hf` model: it counts the text's likelihood as we do."""

from pathlib import Path

import pytest
import torch

from evaluation_cases import END_OF_TEXT, save_model
from rebased.analysis.saved_model import load_saved_model
from rebased.analysis.token_losses import TokenLosses

TEXTS = ["the cat sat on the mat", "a naïve café in 東京", "x"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("saved"), positions=64)


def test_likelihood_of_texts(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    harness = HFLM(pretrained=str(saved), device="cpu", dtype="float32", batch_size=2)
    requests = [Instance("loglikelihood_rolling", {}, (text,), index) for index, text in enumerate(TEXTS)]
    found = harness.loglikelihood_rolling(requests, disable_tqdm=True)
    losses = TokenLosses(load_saved_model(saved).model)
    expected = [-float(losses(torch.tensor([[END_OF_TEXT, *text.encode()]])).sum()) for text in TEXTS]
    assert found == pytest.approx(expected, rel=1e-5)


def test_choices(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of multiple-choice tasks: the likelihood of an end, given a beginning."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    harness = HFLM(pretrained=str(saved), device="cpu", dtype="float32", batch_size=1)
    pairs = [("the cat", " sat"), ("the cat", " 東京")]
    requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    found = [likelihood for likelihood, _ in harness.loglikelihood(requests, disable_tqdm=True)]
    losses = TokenLosses(load_saved_model(saved).model)
    for (start, end), likelihood in zip(pairs, found, strict=True):
        tokens = torch.tensor([[*start.encode(), *end.encode()]])
        assert likelihood == pytest.approx(-float(losses(tokens)[0, -len(end.encode()) :].sum()), rel=1e-5)
