"""Dropout by keys."""

import pytest
import torch

from rebased.layers import Attention
from rebased.layers.dropout import Dropout, derive_keys, use_keys


def keyed(p: float, key: int) -> Dropout:
    dropout = Dropout(p)
    use_keys(dropout)
    dropout.key = torch.tensor([key, 0])
    return dropout


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_drops_as_often_as_asked_and_keeps_the_mean(p: float) -> None:
    x = torch.ones(1000, 333)
    dropped = keyed(p, key=7)(x)
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
    sd = (p * (1 - p) / x.numel()) ** 0.5
    assert abs((dropped == 0).double().mean() - p) < 5 * sd
    for dim in (0, 1):  # nor is any row or column special
        rates = (dropped == 0).double().mean(dim=dim)
        assert (rates - p).abs().max() < 6 * (p * (1 - p) / x.shape[dim]) ** 0.5


def test_neighbours_and_keys_are_independent() -> None:
    x = torch.ones(100_001)
    first, second = (keyed(0.5, key)(x) == 0 for key in (1, 2))
    for other in (second, first.roll(1), first.roll(2), first.roll(4)):
        assert abs((first == other).double().mean() - 0.5) < 0.01


def test_a_key_decides_alone() -> None:
    x = torch.randn(4, 5, 6)
    assert torch.equal(keyed(0.3, key=11)(x), keyed(0.3, key=11)(x))
    assert not torch.equal(keyed(0.3, key=11)(x), keyed(0.3, key=12)(x))
    mapped = torch.vmap(lambda key: torch.func.functional_call(keyed(0.3, key=0), {"key": key}, (x,)))
    assert torch.equal(mapped(torch.tensor([[12, 0], [11, 0]]))[1], keyed(0.3, key=11)(x))


@pytest.mark.parametrize("width", [3, 8])
def test_a_batch_in_parts_is_dropped_as_a_whole(width: int) -> None:
    dropout, x = keyed(0.3, key=11), torch.randn(7, 5, width)
    whole = dropout(x)
    parts = []
    for start in (0, 3, 6):
        dropout.key = torch.tensor([11, start])
        parts.append(dropout(x[start : start + 3]))
    assert torch.equal(torch.cat(parts), whole)


def test_keys_differ_by_seed_step_and_place() -> None:
    keys = torch.stack([derive_keys(torch.arange(-50, 50), step, 3)[..., 0] for step in range(100)])
    assert keys.unique().numel() == keys.numel()
    assert torch.equal(derive_keys(torch.tensor([3]), 2**40, 1), derive_keys(torch.tensor([7, 3]), 2**40, 2)[:1, 1:])


def test_without_a_key_it_is_torchs() -> None:
    x = torch.randn(100)
    torch.manual_seed(0)
    expected = torch.nn.functional.dropout(x, 0.4)
    torch.manual_seed(0)
    assert torch.equal(Dropout(0.4)(x), expected)
    assert Dropout(0.4).eval()(x) is x
    assert keyed(0.4, key=1).eval()(x) is x
    assert use_keys(Dropout(0.0)) == []


@pytest.mark.parametrize("num_key_heads", [1, 4])
@pytest.mark.parametrize("with_at", [False, True])
def test_attention_weights_are_dropped_by_key(num_key_heads: int, with_at: bool) -> None:
    """Averaged over keys, what is dropped and scaled up is what is not dropped at all."""
    torch.manual_seed(0)
    mixer = Attention(8, num_heads=4, num_key_heads=num_key_heads, dropout=0.2).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    at = torch.tensor([[0, 3, 6], [6, 1, 1]]) if with_at else None
    expected = mixer.eval()(x, at=at)
    use_keys(mixer.train())
    keys = derive_keys(torch.arange(4000), 0, 1)[0]
    outs = torch.vmap(lambda key: torch.func.functional_call(mixer, {"dropout.key": key}, (x,), {"at": at}))(keys)
    error = (outs.mean(dim=0) - expected).abs()
    assert (error <= 6 * outs.std(dim=0) / len(keys) ** 0.5 + 1e-12).all()
    assert outs.std(dim=0).max() > 0.01
