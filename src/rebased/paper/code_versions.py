"""Which versions of the code made the runs of two models: where none made both, that may be what they differ in."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from rebased.paper.experiment import Data
from rebased.paper.recall_cells import listed

__all__ = ["versions_text"]

Places = list[tuple[int, int]]
"""Lengths and widths."""


def versions_text(cells: Sequence[Data], names: Mapping[str, str]) -> str:
    """Which stacks have no version in common, in all cells that both have or in some; nothing if all were by one."""
    by_stack: dict[str, dict[tuple[int, int], set[str]]] = {}
    for cell in cells:
        if cell.get("versions"):  # which earlier findings do not have
            place = cell["seq_len"], cell["d_model"]
            by_stack.setdefault(cell["stack"], {})[place] = set(cell["versions"])
    versions = {version for mine in by_stack.values() for each in mine.values() for version in each}
    if len(versions) < 2:
        return ""
    apart: dict[tuple[str, str], list[str]] = {}  # by the first of the two, and where
    for one, other in combinations([stack for stack in names if stack in by_stack], 2):
        mine, theirs = by_stack[one], by_stack[other]
        shared = sorted(mine.keys() & theirs.keys())
        places = [place for place in shared if mine[place].isdisjoint(theirs[place])]
        if places:
            where = "" if places == shared else f" ({_spelled(places, shared)})"
            apart.setdefault((one, where), []).append(names[other])
    said = f"These runs were made by {len(versions)} versions of the code."
    in_all, in_some = (_merged(apart, names, is_some=is_some) for is_some in (False, True))
    found = [f"in {what} of {pairs}" for what, pairs in (("all cells", in_all), ("some cells", in_some)) if pairs]
    if not found:
        return f"{said} In each cell all models have one in common."
    return f"{said} Where two models have none in common, they may differ for that alone: {'; '.join(found)}."


def _merged(apart: Mapping[tuple[str, str], Sequence[str]], names: Mapping[str, str], *, is_some: bool) -> str:
    """``Based and x² with ReBased``: those that are apart from the same ones, and there, in one."""
    firsts: dict[tuple[str, str], list[str]] = {}
    for (one, where), others in apart.items():
        if bool(where) == is_some:
            firsts.setdefault((listed(others), where), []).append(names[one])
    return "; ".join(f"{listed(ones)} with {others}{where}" for (others, where), ones in firsts.items())


def _spelled(places: Places, shared: Places) -> str:
    """``d = 16 and 24``, or where there are several lengths ``256 tokens with d = 64; 512 tokens``."""
    if len({length for length, _ in shared}) == 1:
        return f"d = {listed(width for _, width in places)}"
    said = []
    for length in sorted({length for length, _ in places}):
        widths = [width for each, width in places if each == length]
        is_whole = widths == [width for each, width in shared if each == length]
        said.append(f"{length} tokens" if is_whole else f"{length} tokens with d = {listed(widths)}")
    return listed(said)
