"""A pass of the compiler: products that sum over all tokens of a batch are cut into several.

The gradient of a weight is such a product: small, of factors with a hundred thousand rows. For a stack of models it is
one tile of numbers for each, and so a few programs walk all rows while the rest of a card waits: at d = 16 these were
an eighth of a step.
"""

import math
from collections.abc import Callable

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

__all__ = ["SplitLongSums"]

TILE = 64
"""About the rows and columns that a program makes of a product."""


class SplitLongSums(CustomGraphPass):
    """Turns (R, M, K) · (R, K, N) into a sum of products over at least ``rows`` of the K rows each.

    Where M and N are large there are programs enough: no more parts than make ``programs`` for each of the R.
    """

    def __init__(self, rows: int = 2048, programs: int = 64) -> None:
        self.rows, self.programs = rows, programs

    def __call__(self, graph: fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default):
            parts = self._num_parts(*node.args)
            if parts > 1:
                _split(graph, node, parts)

    def uuid(self) -> object:
        return get_hash_for_files((__file__,), f"{self.rows} {self.programs}")

    def _num_parts(self, x: fx.Node, y: fx.Node) -> int:
        """A power of two that divides K."""
        M, K = x.meta["val"].shape[1:]
        N = y.meta["val"].shape[2]
        is_known = all(isinstance(size, int) and size > 0 for size in (M, K, N))
        if not (is_known and x.meta["val"].is_floating_point()):
            return 1
        tiles = math.ceil(M / TILE) * math.ceil(N / TILE)
        parts = max(1, min(K // self.rows, self.programs // tiles))
        return math.gcd(1 << parts.bit_length() - 1, K)


def _last_place(node: fx.Node) -> fx.Node:
    """What a node may be put before, at the latest: its first user, or what writes into memory that it may read."""
    place, first_user = node, min(node.users, default=node)
    while place is not first_user and not _writes(place):
        place = place.next
    return place


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _split(graph: fx.Graph, node: fx.Node, parts: int) -> None:
    aten = torch.ops.aten
    x, y = node.args
    assert isinstance(x, fx.Node)
    assert isinstance(y, fx.Node)
    M, K = x.meta["val"].shape[1:]
    N = y.meta["val"].shape[2]

    def add(target: Callable[..., object], *args: fx.node.Argument) -> fx.Node:
        new = graph.call_function(target, args)
        new.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args))
        return new

    # A factor of which another shape is wanted the compiler copies, unless it is in memory by then (on a GPU) and in no
    # third shape. So y is cut as it was first, and as late as it may be: often after another product of it.
    while y.target is aten.reshape.default:
        assert isinstance(y.args[0], fx.Node)
        y = y.args[0]
    with graph.inserting_before(_last_place(node)):
        # The number of models may be a symbol, of which -1 is the one name that needs no node of its own.
        rows = add(aten.permute.default, add(aten.reshape.default, x, [-1, M, parts, K // parts]), [0, 2, 1, 3])
        rows = add(aten.reshape.default, rows, [-1, M, K // parts])
        columns = add(aten.reshape.default, y, [-1, K // parts, N])
        products = add(aten.reshape.default, add(aten.bmm.default, rows, columns), [-1, parts, M, N])
        total = add(aten.sum.dim_IntList, products, [1])  # which adds in float32
    node.replace_all_uses_with(total)
    graph.erase_node(node)
