"""Sequences that grow: the same as by torch.cat, whoever extends them, with fewer copies."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rebased.layers.growing import MIN_ROOM, SHARE, extend


def rows(num: int) -> Tensor:
    return torch.randn(2, num, 3)


@given(start=st.integers(0, 40), lengths=st.lists(st.integers(0, 4), max_size=30), data=st.data())
def test_extends_any_earlier_sequence(start: int, lengths: list[int], data: st.DataObject) -> None:
    """Also one that has been extended before: then it and what came of it stay as they were."""
    made = [(x := rows(start), x.clone())]
    for num in lengths:
        base, expected = made[data.draw(st.integers(0, len(made) - 1))]
        new = rows(num)
        made.append((extend(base, new), torch.cat([expected, new], dim=1)))
    for found, expected in made:
        assert torch.equal(found, expected)


def test_writes_where_there_is_room() -> None:
    longer = extend(rows(10), rows(1))
    start = longer.data_ptr()
    for _ in range(MIN_ROOM):
        longer = extend(longer, rows(1))
        assert longer.data_ptr() == start
    assert extend(longer, rows(1)).data_ptr() != start


def test_copies_seldom_however_long() -> None:
    longer, num_copies = rows(0), 0
    for _ in range(4000):
        before = longer.data_ptr()
        longer = extend(longer, rows(1))
        num_copies += longer.data_ptr() != before
    assert longer.untyped_storage().nbytes() <= longer.nbytes * (1 + 2 / SHARE)
    assert num_copies < 40


def test_gives_gradients() -> None:
    old, new = rows(20).requires_grad_(), rows(1).requires_grad_()
    longer = extend(old, new)
    extend(longer, rows(1)).sum().backward()
    assert old.grad is not None
    assert torch.equal(old.grad, torch.ones_like(old))
    assert new.grad is not None
    assert torch.equal(new.grad, torch.ones_like(new))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_has_the_dtype_of_what_is_new(dtype: torch.dtype) -> None:
    longer = extend(extend(rows(20), rows(1)), rows(1).to(dtype))
    assert longer.dtype == dtype


def test_maps_and_compiles() -> None:
    old, new = torch.randn(4, 2, 20, 3), torch.randn(4, 2, 1, 3)
    assert torch.equal(torch.vmap(extend)(old, new), torch.cat([old, new], dim=2))
    assert torch.equal(torch.compile(extend, fullgraph=True)(old[0], new[0]), torch.cat([old[0], new[0]], dim=1))


def test_goes_on_outside_inference_mode() -> None:
    with torch.inference_mode():
        longer = extend(rows(20), rows(1))
    assert torch.equal(extend(longer, longer[:, :1]), torch.cat([longer, longer[:, :1]], dim=1))
