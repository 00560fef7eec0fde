"""Tables 4 and 9 of the paper, to the unit."""

import pytest
import torch

from rebased.models import LanguageModel, preset

# d_model, and for each row the published count and the number of positions with which it fits.
TABLE_4 = {
    64: {
        "attention": (623_744, 1024),
        "conv_attention": (578_752, 512),
        "rwkv": (623_872, 1024),
        "conv_rwkv": (677_120, 2048),
        "mamba": (655_360, 1024),
        "based": (577_984, 256),
        "rebased": (577_984 + 768, 256),
    },
    128: {
        "attention": (1_313_024, 1024),
        "conv_attention": (1_149_312, 128),
        "rwkv": (1_313_280, 1024),
        "conv_rwkv": (1_395_200, 2048),
        "mamba": (1_413_120, 1024),
        "based": (1_179_520, 256),
        "rebased": (1_179_520 + 768, 256),
    },
    256: {
        "attention": (2_888_192, 1024),
        "conv_attention": (2_462_464, 128),
        "rwkv": (2_888_704, 1024),
        "conv_rwkv": (2_561_024, 512),
        "mamba": (3_235_840, 1024),
        "based": (2_459_392, 256),
        "rebased": (2_459_392 + 768, 256),
    },
    512: {
        "attention": (6_824_960, 1024),
        "conv_attention": (5_580_288, 128),
        "rwkv": (6_825_984, 1024),
        "conv_rwkv": (5_777_408, 512),
        "mamba": (7_847_936, 512),
        "based": (5_307_904, 256),
        "rebased": (5_307_904 + 768, 256),
    },
}
TABLE_9 = {"lm-attention": 126_807_552, "lm-based": 156_955_392, "lm-rebased": 156_992_256}


def count(model: LanguageModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("row", "d_model", "seq_len", "published"),
    [(row, d, seq_len, n) for d, rows in TABLE_4.items() for row, (n, seq_len) in rows.items()],
)
def test_table_4(row: str, d_model: int, seq_len: int, published: int) -> None:
    assert count(LanguageModel(preset(f"mqar-{row}", d_model=d_model, seq_len=seq_len))) == published


@pytest.mark.parametrize(("name", "published"), TABLE_9.items())
def test_table_9(name: str, published: int) -> None:
    with torch.device("meta"):
        model = LanguageModel(preset(name))
    assert count(model) == published
