"""Sequences that grow: the same as by torch.cat, whoever extends them, with fewer copies."""

import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rebased.layers.growing import MAX_ROOM, MIN_ROOM, SHARE, extend


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


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
    num_written = 0
    while (longer := extend(longer, rows(1))).data_ptr() == start:
        num_written += 1
    assert MIN_ROOM // 2 <= num_written <= MIN_ROOM


def test_copies_of_layers_do_not_coincide() -> None:
    """Twelve layers' keys and values after a long prompt, token by token until all have been copied."""
    layers, most = [extend(torch.empty(1, 0, 1), torch.zeros(1, 8192, 1)) for _ in range(24)], 0
    for _ in range(MAX_ROOM + 1):
        longer = [extend(layer, torch.zeros(1, 1, 1)) for layer in layers]
        most = max(most, sum(x.data_ptr() != y.data_ptr() for x, y in zip(layers, longer, strict=True)))
        layers = longer
    assert 1 <= most <= 4


def test_copies_seldom_however_long() -> None:
    longer, num_copies = rows(0), 0
    for _ in range(4000):
        before = longer.data_ptr()
        longer = extend(longer, rows(1))
        num_copies += longer.data_ptr() != before
    assert longer.untyped_storage().nbytes() <= longer.nbytes * (1 + 2 / SHARE)
    assert num_copies < 40


def test_gives_gradients() -> None:
    with torch.enable_grad():
        old, new = rows(20).requires_grad_(), rows(1).requires_grad_()
        longer = extend(old, new)
        extend(longer, rows(1)).sum().backward()
    assert old.grad is not None
    assert torch.equal(old.grad, torch.ones_like(old))
    assert new.grad is not None
    assert torch.equal(new.grad, torch.ones_like(new))


def test_what_a_gradient_needs_is_not_overwritten() -> None:
    """Rows without gradients of their own, saved for those of something else."""
    kept = extend(rows(4), rows(1))
    with torch.enable_grad():
        query = torch.ones(3, requires_grad=True)
        out = (kept * query).sum()
        longer = extend(kept, rows(1))
        (out + (longer * query).sum()).backward()
    assert query.grad is not None
    torch.testing.assert_close(query.grad, (kept.sum(dim=1) + longer.sum(dim=1)).sum(dim=0))


def test_threads_that_share_a_beginning() -> None:
    wrong = []
    for _ in range(30):
        start, barrier = extend(rows(8), rows(1)), threading.Barrier(4)
        found: dict[int, Tensor] = {}

        def work(
            index: int, start: Tensor = start, barrier: threading.Barrier = barrier, found: dict[int, Tensor] = found
        ) -> None:
            barrier.wait()
            longer = start
            with torch.no_grad():
                for _ in range(3):
                    longer = extend(longer, torch.full((2, 4, 3), float(index)))
            found[index] = longer

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wrong += [index for index, longer in found.items() if not (longer[:, 9:] == index).all()]
    assert not wrong


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
