"""How the Triton backend cuts sequences into pieces, and how it lays out a state."""

import itertools

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from rebased.monomials import monomials
from rebased.ops.triton.layout import Layout
from rebased.ops.triton.pieces import cut, even_chunks, gather_queries, packed_chunks, packed_pieces
from rebased.ops.triton.tiles import locate, slot_of

lengths = st.lists(st.integers(0, 20), min_size=1, max_size=6)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def borders_of(counts: list[int]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(counts)])


@given(counts=lengths, length=st.sampled_from([1, 2, 4, 8]))
def test_pieces_cover_every_row_once(counts: list[int], length: int) -> None:
    borders = borders_of(counts)
    total = sum(counts)
    owner, start, end = cut(borders, length, total // length + len(counts))
    expected = [
        (n, a, min(a + length, b))
        for n, (a0, b) in enumerate(itertools.pairwise(borders.tolist()))
        for a in range(a0, b, length)
    ]
    found = [(n, a, b) for n, a, b in zip(owner.tolist(), start.tolist(), end.tolist(), strict=True) if b > a]
    assert found == expected


@given(counts=lengths, chunk=st.sampled_from([4, 8]), factor=st.sampled_from([0.5, 1, 2]))
def test_packed_pieces_know_their_chunk(counts: list[int], chunk: int, factor: float) -> None:
    borders = borders_of(counts)
    pieces = packed_pieces(borders, sum(counts), int(chunk * factor), chunk)
    chunks = [(n, a) for n, (a0, b) in enumerate(itertools.pairwise(borders.tolist())) for a in range(a0, b, chunk)]
    for sequence, start, end, index, chunk_start, sequence_start, sequence_end in pieces.table.tolist():
        if end == start:
            continue
        assert chunks[index] == (sequence, chunk_start)
        assert chunk_start <= start < chunk_start + chunk
        assert (sequence_start, sequence_end) == tuple(borders[sequence : sequence + 2].tolist())


@triton.jit
def slots_kernel(out, table, num_tokens, LENGTH: tl.constexpr, AFTER: tl.constexpr, OWN_EDGES: tl.constexpr) -> None:
    piece = tl.program_id(0)
    sequence, start, end, chunk, _, sequence_start, sequence_end = locate(piece, table, 0, 0, LENGTH, LENGTH, True)
    if end > start:
        slot = slot_of(chunk, sequence, start, sequence_start, sequence_end, num_tokens, LENGTH, True, AFTER, OWN_EDGES)
        tl.store(out + piece, slot)


@given(counts=lengths, length=st.sampled_from([2, 4, 8]), after=st.booleans(), own_edges=st.booleans())
def test_states_of_packed_sequences_do_not_share_a_slot(
    counts: list[int], length: int, after: bool, own_edges: bool
) -> None:
    total = sum(counts)
    pieces = packed_pieces(borders_of(counts).to(DEVICE), total, length, length)
    out = torch.full((pieces.count,), -1, dtype=torch.int32, device=DEVICE)
    slots_kernel[(pieces.count,)](out, pieces.table, total, LENGTH=length, AFTER=after, OWN_EDGES=own_edges)
    inner, edges = [], []
    for slot, (_, start, end, _, _, sequence_start, sequence_end) in zip(
        out.tolist(), pieces.table.tolist(), strict=True
    ):
        if end > start:
            is_edge = end == sequence_end if after else start == sequence_start
            (edges if is_edge else inner).append(slot)
    assert len(set(inner)) == len(inner)
    assert all(1 <= slot <= total // length for slot in inner)
    if own_edges:
        assert len(set(edges)) == len(edges)
        assert all(0 < slot - total // length <= len(counts) for slot in edges)
    else:
        assert set(edges) <= {0}


@given(
    counts=lengths.filter(lambda counts: sum(counts) > 0),
    queries=st.lists(st.floats(0, 1, exclude_max=True), max_size=12),
    packed=st.booleans(),
)
def test_gathered_queries_meet_their_chunk(counts: list[int], queries: list[float], packed: bool) -> None:
    chunk, total = 4, sum(counts)
    if packed:
        chunks = packed_chunks(packed_pieces(borders_of(counts), total, chunk, chunk), total)
        at = torch.tensor([[int(x * total) for x in queries]], dtype=torch.int64)
        limits = dict(enumerate(itertools.pairwise(borders_of(counts).tolist())))
    else:
        chunks = even_chunks(2, total, chunk, torch.device("cpu"))
        at = torch.tensor([[int(x * total) for x in queries]] * 2, dtype=torch.int64).reshape(2, -1)
        limits = {0: (0, total), 1: (0, total)}
    gathered = gather_queries(at, chunks)
    pieces = gathered.pieces(2)
    seen = []
    for sequence, start, end, _, chunk_start, sequence_start, sequence_end in pieces.table.tolist():
        for index in range(start, end):
            position, order = gathered.positions[index].item(), gathered.order[index].item()
            row = 0 if packed else sequence
            assert at[row, order] == position
            assert chunk_start <= position < min(chunk_start + chunk, sequence_end)
            assert (sequence_start, sequence_end) == limits[sequence]
            seen.append((row, order))
    assert sorted(seen) == [(b, p) for b in range(at.shape[0]) for p in range(at.shape[1])]


@pytest.mark.parametrize("degrees", [(2,), (1,), (0, 1), (0, 2), (0, 1, 2)], ids=str)
def test_square_and_packed_layouts_describe_the_same_sums(degrees: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, dtype=torch.float64, generator=generator)
    layout = Layout(feature_dim=3, padded=4, degrees=degrees)

    def square(x: torch.Tensor) -> torch.Tensor:
        z = torch.nn.functional.pad(x, (0, 1))
        parts = {2: torch.outer(z, z).flatten(), 1: z, 0: torch.ones(1, dtype=z.dtype)}
        return torch.cat([parts[degree] for degree in reversed(degrees)])

    packed = torch.cat([monomials(x, degree) for degree in degrees])[None, None, :, None]
    assert torch.equal(layout.to_square(packed)[0, 0, :, 0], square(x))
    assert torch.equal(layout.to_packed(square(x)[None, None, :, None]), packed)
    # Both transposes, as inner products.
    other = square(y)[None, None, :, None]
    torch.testing.assert_close(
        (layout.to_square(packed) * other).sum(), (packed * layout.to_square_transposed(other)).sum()
    )
    symmetric = layout.to_square(packed)
    torch.testing.assert_close(
        (layout.to_packed(symmetric) * packed).sum(), (symmetric * layout.to_packed_transposed(packed)).sum()
    )
