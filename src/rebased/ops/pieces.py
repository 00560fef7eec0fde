"""A batch of groups in pieces, of which the torch backends compute one after the other."""

from collections.abc import Iterator


def pieces(batch_size: int, num_groups: int, numbers: int, limit: int) -> Iterator[tuple[slice, slice]]:
    """Slices of batch and groups: of up to ``limit`` numbers each, where a sequence of one group has ``numbers``."""
    groups_at_once = max(1, min(num_groups, limit // numbers))
    num_rows = max(1, limit // (numbers * groups_at_once))
    for row in range(0, batch_size, num_rows):
        for group in range(0, num_groups, groups_at_once):
            yield slice(row, row + num_rows), slice(group, group + groups_at_once)
