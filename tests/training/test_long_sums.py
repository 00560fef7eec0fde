"""Products cut by the compiler: where, and that they are the same products."""

import pytest
import torch
from torch import fx
from torch._inductor import metrics

from rebased.training.long_sums import SplitLongSums


class Recorded(SplitLongSums):
    """Keeps the number of parts of each product."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.parts: list[int] = []

    def uuid(self) -> None:
        """Not from a cache, which would not call this."""

    def __call__(self, graph: fx.Graph) -> None:
        before = _batches(graph)
        super().__call__(graph)
        self.parts += [new // old for old, new in zip(before, _batches(graph), strict=True)]


def _batches(graph: fx.Graph) -> list[int]:
    products = graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)
    return [int(node.meta["val"].shape[0]) for node in products]


@pytest.mark.parametrize(
    ("rows", "width", "parts"),
    [
        pytest.param(64, 5, 8, id="as many rows as a part has"),
        pytest.param(60, 5, 4, id="the largest power of two that divides the rows"),
        pytest.param(64, 130, 2, id="three tiles: as few parts as make enough programs"),
        pytest.param(15, 5, 1, id="too short"),
        pytest.param(64, 700, 1, id="programs enough"),
    ],
)
def test_gradients_of_weights(rows: int, width: int, parts: int) -> None:
    """Of the two products, forward and backward, only the latter sums over all rows."""
    torch.manual_seed(0)
    torch.compiler.reset()
    split = Recorded(rows=8, programs=8)
    x = torch.randn(3, rows, 7)
    weights = torch.randn(3, 7, width, requires_grad=True)
    grad = torch.randn(3, rows, width)
    compiled = torch.compile(lambda x, w: torch.vmap(torch.mm)(x, w), options={"post_grad_custom_pre_pass": split})
    torch._dynamo.maybe_mark_dynamic(x, 0)
    torch._dynamo.maybe_mark_dynamic(weights, 0)
    (actual,) = torch.autograd.grad(compiled(x, weights), weights, grad)
    (exact,) = torch.autograd.grad(torch.bmm(x.double(), weights.double()), weights, grad.double())
    assert split.parts == [1, parts]
    torch.testing.assert_close(actual, exact)


def test_a_product_stays_before_what_overwrites_its_factors() -> None:
    def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = torch.bmm(x, y)
        y.add_(1)
        return product

    torch.manual_seed(0)
    torch.compiler.reset()
    split = Recorded(rows=8, programs=8)
    x, y = torch.randn(2, 3, 64), torch.randn(2, 64, 5)
    expected = torch.bmm(x.double(), y.double())
    with torch.no_grad():
        actual = torch.compile(multiply, options={"post_grad_custom_pre_pass": split})(x, y)
    assert split.parts == [8]
    torch.testing.assert_close(actual, expected, check_dtype=False, rtol=1e-5, atol=1e-5)


def test_no_factor_is_copied() -> None:
    """Cut products take one kernel more, which sums their parts."""

    def num_kernels(split: SplitLongSums) -> int:
        torch.manual_seed(0)
        torch.compiler.reset()
        metrics.reset()
        inputs = [torch.randn(shape, requires_grad=True) for shape in ((3, 16, 64, 7), (3, 5, 7))]
        for tensor in inputs:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        compiled = torch.compile(linear, options={"post_grad_custom_pre_pass": split})
        actual = torch.autograd.grad(compiled(*inputs).sum(), inputs)
        inputs = [tensor.detach().double().requires_grad_() for tensor in inputs]
        exact = torch.autograd.grad(linear(*inputs).sum(), inputs)
        torch.testing.assert_close(actual, exact, check_dtype=False, rtol=1e-5, atol=2e-5)  # sums of a thousand
        return metrics.generated_kernel_count

    def linear(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.vmap(torch.nn.functional.linear)(x.tanh(), weights).sigmoid()

    split, whole = Recorded(rows=8, programs=8), Recorded(rows=2048)
    assert num_kernels(split) == num_kernels(whole) + 1
    assert (max(split.parts), max(whole.parts)) == (8, 1)
