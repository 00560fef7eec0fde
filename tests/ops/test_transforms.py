"""Autograd and its relatives: the operators' registration, gradients, torch.func, what is refused, autocast, purity."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from rebased.kernels import BASED, ELEMENTWISE_SQUARE, ELU_PLUS_ONE, REBASED, RELU, RFA, CosFormer, FeatureMap, Kernel
from rebased.ops import KernelState, attention_matrix, kernel_attention, kernel_attention_step
from transform_cases import (
    KERNELS,
    NUM_HEADS,
    OPTIONS,
    assert_same,
    call_arguments,
    coefficients,
    learned,
    loss_of,
    qkv,
    randn,
    tensors,
    with_grads,
)

# Forward-mode differentiation makes torch itself load decompositions that it still keeps in TorchScript.
FORWARD_MODE = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


# ---- The operators as torch sees them ----


class Recorder(TorchDispatchMode):
    """Keeps every call of one of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.namespace == "rebased":
            detached = tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, args)
            self.calls.append((operator, detached))
        return operator(*args, **(kwargs or {}))


def recorded_calls(run: Callable[[], Any]) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    with Recorder() as recorder:
        run()
    return {operator.name(): (operator, args) for operator, args in recorder.calls}


def opcheck_calls(run: Callable[[], Any], *, expected: set[str]) -> None:
    calls = recorded_calls(run)
    assert set(calls) == expected
    for name, (operator, args) in calls.items():
        torch.library.opcheck(operator, args)
        if name == "rebased::attend":
            differentiable = [
                x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args
            ]
            torch.library.opcheck(operator, tuple(differentiable))


@pytest.mark.parametrize("return_state", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("with_coefficients", [False, True])
def test_opcheck(options: str, return_state: bool, with_coefficients: bool) -> None:
    """Schema, fake tensors, autograd registration and AOT dispatch, for the operator and its backward.

    AOTAutograd once passed gradients of a state that had not been asked for, of size 0, to the backward pass.
    """
    q, k, v = qkv(options)
    kernel = learned(*(c.requires_grad_() for c in coefficients(NUM_HEADS))) if with_coefficients else REBASED
    arguments = call_arguments(options, kernel)

    def run() -> None:
        result = kernel_attention(
            q.requires_grad_(), k, v, kernel, return_state=return_state, backend="chunked", **arguments
        )
        loss_of(result).backward()

    expected = {"rebased::attend", "rebased::attend_backward"}
    expected |= {"rebased::checked_positions"} if "at" in arguments else set()
    expected |= {"rebased::checked_borders"} if "cu_seqlens" in arguments else set()
    opcheck_calls(run, expected=expected)


@pytest.mark.parametrize("options", ["state", "everything"])
def test_opcheck_in_low_precision(options: str) -> None:
    """Sums are float32 where inputs and outputs are bfloat16."""
    q, k, v = (x.bfloat16() for x in qkv(options))
    arguments = call_arguments(options, BASED)
    arguments["state"] = in_float32(arguments["state"], BASED)

    def run() -> None:
        result = kernel_attention(q.requires_grad_(), k, v, BASED, return_state=True, backend="chunked", **arguments)
        loss_of([x.float() for x in tensors(result)]).backward()

    names = {"attend", "attend_backward"}
    names |= {"checked_positions", "checked_borders"} if options == "everything" else set()
    opcheck_calls(run, expected={f"rebased::{name}" for name in names})


def test_opcheck_with_a_feature_map() -> None:
    """Its features come as strided views of what torch computed, and cosFormer's positions are checked as well."""
    q, k, v = qkv("everything")
    kernel = CosFormer(64)

    def run() -> None:
        arguments = call_arguments("everything", kernel)
        loss_of(kernel_attention(q.requires_grad_(), k, v, kernel, backend="chunked", **arguments)).backward()

    names = {"attend", "attend_backward", "checked_positions", "checked_borders"}
    opcheck_calls(run, expected={f"rebased::{name}" for name in names})


# ---- Gradients ----


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kernel_name", ["rebased", "based", "learned", "power", "elu+1"])
def test_gradcheck(kernel_name: str, options: str) -> None:
    """Against finite differences, in every input that can have a gradient, through the output and the state.

    And the same with the backward pass under vmap.
    """
    q, k, v = (x[..., :2].clone() for x in qkv(options, seq_len=4))
    arguments = call_arguments(options, KERNELS.get(kernel_name, BASED), seq_len=4)
    inputs = {"q": q, "k": k, "v": v}
    if kernel_name == "learned":
        inputs |= dict(zip(("c0", "c1", "c2"), coefficients(NUM_HEADS), strict=True))
    state = None
    if "state" in arguments:
        kernel = KERNELS.get(kernel_name, BASED)
        q0, k0, v0 = (randn(x.shape[0] if "cu_seqlens" not in arguments else 3, 6, *x.shape[2:]) for x in (q, k, v))
        _, state = kernel_attention(q0, k0, v0, kernel, return_state=True, backend="reference")
        inputs |= {"values": state.values, "normalizer": state.normalizer}
    names = list(inputs)

    def run(*leaves: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(names, leaves, strict=True))
        kernel = learned(given["c0"], given["c1"], given["c2"]) if "c0" in given else KERNELS[kernel_name]
        if state is not None:
            arguments["state"] = KernelState(given["values"], given["normalizer"], state.count, kernel=state.kernel)
        out, final = kernel_attention(
            given["q"], given["k"], given["v"], kernel, return_state=True, backend="chunked", **arguments
        )
        return out, final.values, final.normalizer

    leaves = [x.detach().clone().requires_grad_() for x in inputs.values()]
    assert torch.autograd.gradcheck(run, leaves, check_batched_grad=True, fast_mode=True)
    assert run(*leaves)[0].requires_grad


def test_gradcheck_in_full() -> None:
    """Every entry of the Jacobian, where the cases above take random projections of it; across two chunks."""
    q, k, v = (x[:1, :, :1, :2].requires_grad_() for x in qkv(seq_len=66))
    at = torch.tensor([[0, 63, 64, 65]])
    run = partial(kernel_attention, kernel=BASED, at=at, backend="chunked")
    assert torch.autograd.gradcheck(run, (q[:, :4].detach().clone().requires_grad_(), k, v))


@pytest.mark.parametrize("options", OPTIONS)
def test_func_grad(options: str) -> None:
    """torch.func.grad and vjp agree with plain autograd through the reference."""
    q, k, v = qkv(options, seq_len=70)
    arguments = call_arguments(options, BASED, seq_len=70)

    def run(q: Tensor, k: Tensor, v: Tensor, *, backend: str = "chunked") -> Any:
        return kernel_attention(q, k, v, BASED, return_state=True, backend=backend, **arguments)

    result, grads = with_grads(partial(run, backend="reference"), q, k, v)
    assert_same(grad(lambda *x: loss_of(run(*x)), argnums=(0, 1, 2))(q, k, v), grads)

    def sums(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, state = run(*inputs)
        return out, state.values, state.normalizer  # vjp wants no integers, so not the count

    primal, pull = vjp(sums, q, k, v)
    assert_same(primal, (result[0], result[1].values, result[1].normalizer))
    assert_same(pull(tuple(x.cos() for x in primal)), grads)


def test_func_grad_with_respect_to_coefficients_and_state() -> None:
    q, k, v = qkv()
    cs = coefficients(NUM_HEADS)
    state = call_arguments("state", learned(*cs))["state"]

    def run(cs: Any, values: Tensor, normalizer: Tensor, *, backend: str = "chunked") -> Any:
        old = KernelState(values, normalizer, state.count, kernel=state.kernel)
        return kernel_attention(q, k, v, learned(*cs), state=old, return_state=True, backend=backend)

    inputs = (cs, state.values, state.normalizer)
    _, expected = with_grads(partial(run, backend="reference"), *inputs)
    assert_same(grad(lambda *x: loss_of(run(*x)), argnums=(0, 1, 2))(*inputs), expected)


def test_jacrev() -> None:
    """The whole Jacobian: vmap over the backward pass."""
    q, k, v = (x[:1] for x in qkv())
    run = partial(kernel_attention, kernel=BASED)
    for argument in range(3):
        have = jacrev(partial(run, backend="chunked"), argnums=argument)(q, k, v)
        by_reference = partial(run, backend="reference")
        inputs = [q, k, v]

        def only(x: Tensor, argument: int = argument, inputs: Any = inputs, run: Any = by_reference) -> Tensor:
            return run(*inputs[:argument], x, *inputs[argument + 1 :])

        assert_same(have, torch.autograd.functional.jacobian(only, inputs[argument]))


def test_no_grad_inside_nested_grad_is_respected() -> None:
    """The outer of two torch.func.grad must not record what the function itself computed under no_grad."""
    q, k, v = qkv()

    def inner(y: Tensor, x: Tensor, backend: str) -> Tensor:
        with torch.no_grad():
            out = kernel_attention(x, k, v, eps=1.0, backend=backend)
        return y * out.square().sum()

    for backend in ("reference", "chunked"):
        assert not grad(lambda x, b=backend: grad(inner)(x.sum(), x, b))(q).any()


# ---- What is refused ----


def _tangent_of(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    with forward_ad.dual_level():
        return tree_map(lambda y: forward_ad.unpack_dual(y).tangent, function(forward_ad.make_dual(x, x.cos())))


def _again_by_autograd(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(function(x).sin().sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)


def _again_in_the_cotangent(function: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    x, weight = x.clone().requires_grad_(), torch.ones((), dtype=x.dtype, requires_grad=True)
    (first,) = torch.autograd.grad((weight * function(x)).sum(), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), weight)


def _loss(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x).sin().sum()


FORWARD: dict[str, Callable[..., Any]] = {
    "jvp": lambda f, x: jvp(f, (x,), (x.cos(),)),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "forward_ad": _tangent_of,
    "vmap(jvp)": lambda f, x: vmap(lambda t: jvp(f, (x,), (t,)))(torch.stack([x, x.cos()])),
    "jvp(vmap)": lambda f, x: jvp(vmap(f), (x[None],), (x[None].cos(),)),
}
TWICE: dict[str, Callable[..., Any]] = {
    "autograd.grad twice": _again_by_autograd,
    "autograd.grad, then by the cotangent": _again_in_the_cotangent,
    "autograd.functional.hessian": lambda f, x: torch.autograd.functional.hessian(_loss(f), x),
    "grad(grad)": lambda f, x: grad(lambda y: grad(_loss(f))(y).square().sum())(x),
    "jacrev(jacrev)": lambda f, x: jacrev(jacrev(_loss(f)))(x),
    "vmap(grad(grad))": lambda f, x: vmap(grad(lambda y: grad(_loss(f))(y).square().sum()))(x[None]),
    "hessian": lambda f, x: hessian(_loss(f))(x),
    "jvp(grad)": lambda f, x: jvp(grad(_loss(f)), (x,), (x.cos(),)),
    "jvp(vmap(grad))": lambda f, x: jvp(vmap(grad(_loss(f))), (x[None],), (x[None].cos(),)),
    "forward_ad of grad": lambda f, x: _tangent_of(grad(_loss(f)), x),
    "grad(jvp)": lambda f, x: grad(lambda y: jvp(_loss(f), (y,), (y.cos(),))[1])(x),
}
REFUSALS = "cannot be differentiated|jvp function"


@FORWARD_MODE
@pytest.mark.parametrize("way", FORWARD)
@pytest.mark.parametrize("argument", ["q", "k", "v", "state.values", "state.normalizer", "coefficient"])
def test_forward_mode_raises(argument: str, way: str) -> None:
    """In each input: never a tangent of zero in silence."""
    function, x = _function_of(argument, backend="chunked")
    with pytest.raises((RuntimeError, NotImplementedError), match=REFUSALS):
        FORWARD[way](function, x)
    by_reference, x = _function_of(argument, backend="reference")
    assert all(y.isfinite().all() for y in tensors(FORWARD[way](by_reference, x)))


@FORWARD_MODE
@pytest.mark.parametrize("way", TWICE)
@pytest.mark.parametrize("argument", ["q", "v", "state.values", "coefficient"])
def test_second_derivatives_raise(argument: str, way: str) -> None:
    """jvp(grad) once returned zeros: inside an autograd Function forward mode is off, for outer levels as well."""
    function, x = _function_of(argument, backend="chunked")
    with pytest.raises((RuntimeError, NotImplementedError), match=REFUSALS):
        TWICE[way](function, x)


def _function_of(argument: str, *, backend: str) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The output as a function of one input, and a value for it."""
    q, k, v = (x[:1] for x in qkv(seq_len=3))
    cs = coefficients(NUM_HEADS)
    _, state = kernel_attention(*(x[:1] for x in qkv(seed=5)), BASED, return_state=True, backend="reference")
    inputs = {
        "q": q,
        "k": k,
        "v": v,
        "state.values": state.values,
        "state.normalizer": state.normalizer,
        "coefficient": cs[1],
    }

    def function(x: Tensor) -> Tensor:
        given = inputs | {argument: x}
        old = KernelState(given["state.values"], given["state.normalizer"], state.count, kernel=state.kernel)
        kernel = learned(cs[0], given["coefficient"], cs[2])
        return kernel_attention(given["q"], given["k"], given["v"], kernel, state=old, backend=backend)

    return function, inputs[argument]


# ---- Fake and meta tensors ----


@pytest.mark.parametrize("kind", ["fake", "meta"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kernel_name", ["based", "cosformer"])
def test_shapes_without_data(kernel_name: str, options: str, dtype: torch.dtype, kind: str) -> None:
    """Fake and meta tensors give the shapes, strides and dtypes that real ones give: outputs, states, gradients."""
    kernel = KERNELS[kernel_name]
    q, k, v = (x.to(dtype) for x in qkv(options))
    arguments = call_arguments(options, kernel)
    if "state" in arguments and dtype != torch.float64:
        arguments["state"] = in_float32(arguments["state"], kernel)

    def run(q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any]) -> list[Tensor]:
        out, state = kernel_attention(q, k, v, kernel, return_state=True, backend="chunked", **arguments)
        first = state.reorder(torch.zeros(q.shape[0], dtype=torch.int64, device=q.device))
        step = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], first, kernel)
        matrix = attention_matrix(q, k, kernel, **{name: x for name, x in arguments.items() if name != "state"})
        return [*tensors((out, state, step, matrix)), *torch.autograd.grad(loss_of(out), (q, k, v))]

    def convert(function: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
        converted = tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, (q, k, v, arguments))
        return *(x.requires_grad_() for x in converted[:3]), converted[3]

    real = run(*convert(Tensor.clone))
    if kind == "meta":
        without_data = run(*convert(lambda x: x.to("meta")))
    else:
        with FakeTensorMode() as mode:
            without_data = run(*convert(mode.from_tensor))
    for have, want in zip(without_data, real, strict=True):
        assert (have.shape, have.dtype, strides(have)) == (want.shape, want.dtype, strides(want))
        assert have.device.type == ("meta" if kind == "meta" else "cpu")


def strides(x: Tensor) -> list[int]:
    """Of axes where they mean something; elsewhere torch's own fake operators take liberties."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def in_float32(state: KernelState, kernel: Kernel) -> KernelState:
    return KernelState.of_sums(kernel.name, state.values.float(), state.normalizer.float(), state.count)


# ---- Autocast ----


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_autocast(kernel_name: str) -> None:
    """float32 inputs are cast as for a matrix product; sums, state and features stay in float32, gradients return so.

    Bit for bit what an explicit cast gives outside autocast, whose mode once reached into the operator's products.
    """
    kernel = KERNELS[kernel_name]
    inputs = [x.float() for x in qkv(seq_len=70)]

    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        first = kernel_attention(q[:, :40], k[:, :40], v[:, :40], kernel, return_state=True, backend="chunked")
        return first, kernel_attention(
            q[:, 40:], k[:, 40:], v[:, 40:], kernel, state=first[1], return_state=True, backend="chunked"
        )

    def autocast(*inputs: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return run(*inputs)

    result, grads = with_grads(autocast, *inputs)
    for out, state in result:
        assert out.dtype == torch.bfloat16
        assert state.values.dtype == state.normalizer.dtype == torch.float32
    assert all(x.dtype == torch.float32 for x in grads)
    expected, expected_grads = with_grads(lambda *x: run(*(y.bfloat16() for y in x)), *inputs)
    for have, want in zip(tensors((result, grads)), tensors((expected, expected_grads)), strict=True):
        assert torch.equal(have, want)


def test_autocast_of_a_step() -> None:
    q, k, v = (x.float() for x in qkv())
    _, state = kernel_attention(q, k, v, return_state=True)
    inputs = [x[:, 0] for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, new = kernel_attention_step(*inputs, state)
    assert out.dtype == torch.bfloat16
    assert new.values.dtype == new.normalizer.dtype == torch.float32
    expected = kernel_attention_step(*(x.bfloat16() for x in inputs), state)
    assert all(torch.equal(a, b) for a, b in zip(tensors((out, new)), tensors(expected), strict=True))


def test_autocast_mixes_dtypes() -> None:
    """Under autocast a bfloat16 q meets a float32 k, as in a product; outside that is an error."""
    q, k, v = (x.float() for x in qkv())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = kernel_attention(q.bfloat16(), k, v)
    assert torch.equal(out, kernel_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()))
    with pytest.raises(ValueError, match="k has dtype"):
        kernel_attention(q.bfloat16(), k, v)


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_autocast_leaves_float64_alone(kernel_name: str) -> None:
    inputs = qkv(seq_len=70)
    run = partial(kernel_attention, kernel=KERNELS[kernel_name], return_state=True, backend="chunked")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = with_grads(run, *inputs)
    assert all(torch.equal(a, b) for a, b in zip(tensors(result), tensors(with_grads(run, *inputs)), strict=True))


def test_feature_maps_compute_in_float32_under_autocast() -> None:
    """The map sees float32, and a product inside it is not cast either."""
    seen = []

    def project(x: Tensor) -> Tensor:
        projected = x @ torch.ones(x.shape[-1], 2)
        seen.append((x.dtype, projected.dtype))
        return projected.relu()

    kernel = FeatureMap(project, name="probe", nonnegative=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kernel_attention(*(x.float() for x in qkv()), kernel, backend="chunked")
    assert len(seen) >= 2
    assert set(seen) == {(torch.float32, torch.float32)}


# ---- Memory savers and modes ----


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_checkpoint(kernel_name: str) -> None:
    inputs = qkv(seq_len=70)
    run = partial(kernel_attention, kernel=KERNELS[kernel_name], return_state=True)
    have = with_grads(lambda *x: checkpoint(partial(run, backend="chunked"), *x, use_reentrant=False), *inputs)
    assert_same(have, with_grads(partial(run, backend="reference"), *inputs))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("options", OPTIONS)
def test_without_gradients(options: str, mode: Any) -> None:
    """The same numbers, no graph; and the state goes on working."""
    q, k, v = (x.requires_grad_() for x in qkv(options))
    arguments = call_arguments(options, BASED)
    with mode():
        have = kernel_attention(q, k, v, BASED, return_state=True, backend="chunked", **arguments)
        assert not any(x.requires_grad for x in tensors(have))
        after = kernel_attention_step(
            *(randn(have[1].values.shape[0], *x.shape[2:]) for x in (q, k, v)), have[1], BASED
        )
        assert after[0].isfinite().all()
    assert_same(have, kernel_attention(q, k, v, BASED, return_state=True, backend="reference", **arguments))


def test_state_can_be_detached_between_pieces() -> None:
    """Truncated backpropagation: no gradient reaches the first piece through a detached state."""
    q, k, v = (x.requires_grad_() for x in qkv())
    _, state = kernel_attention(q[:, :3], k[:, :3], v[:, :3], return_state=True)
    out = kernel_attention(q[:, 3:], k[:, 3:], v[:, 3:], state=state.detach())
    (dk,) = torch.autograd.grad(out.sum(), k)
    assert not dk[:, :3].any()
    assert dk[:, 3:].any()


# ---- Strides, purity, repeatability ----


def _transposed(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _strided(x: Tensor) -> Tensor:
    return torch.stack([x, torch.full_like(x, torch.nan)], dim=-1)[..., 0]


def _reversed_layout(x: Tensor) -> Tensor:
    return x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)


@pytest.mark.parametrize("layout", [_transposed, _strided, _reversed_layout])
@pytest.mark.parametrize("options", OPTIONS)
def test_noncontiguous_inputs(options: str, layout: Callable[[Tensor], Tensor]) -> None:
    inputs = qkv(options, seq_len=70)
    arguments = call_arguments(options, BASED, seq_len=70)
    run = partial(kernel_attention, kernel=BASED, return_state=True, **arguments)
    assert any(not layout(x).is_contiguous() for x in inputs)
    have = with_grads(lambda *x: run(*map(layout, x), backend="chunked"), *inputs)
    assert_same(have, with_grads(partial(run, backend="reference"), *inputs))


def test_expanded_inputs() -> None:
    """Stride 0 in batch, time and heads; gradients are summed over what was expanded."""
    q, k, v = randn(2, 1, 4, 3), randn(2, 70, 1, 3), randn(1, 70, 2, 5)
    mask = (torch.arange(70) % 3 > 0)[None]

    def run(q: Tensor, k: Tensor, v: Tensor, *, backend: str = "chunked") -> Any:
        q, k, v = q.expand(-1, 70, -1, -1), k.expand(-1, -1, 2, -1), v.expand(2, -1, -1, -1)
        return kernel_attention(q, k, v, BASED, key_mask=mask.expand(2, -1), return_state=True, backend=backend)

    assert_same(with_grads(run, q, k, v), with_grads(partial(run, backend="reference"), q, k, v))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kernel_name", ["rebased", "learned", "cosformer"])
def test_inputs_are_not_modified(kernel_name: str, options: str) -> None:
    """Neither forward nor backward writes to what it was given; nor do results share its memory."""
    kernel = learned(*coefficients(NUM_HEADS)) if kernel_name == "learned" else KERNELS[kernel_name]
    inputs = [x.requires_grad_() for x in qkv(options)]
    arguments = call_arguments(options, kernel)
    given = tensors((inputs, arguments)) + ([*kernel.terms] if kernel_name == "learned" else [])
    before = [(x.detach().clone(), x._version) for x in given]
    result = kernel_attention(*inputs, kernel, return_state=True, backend="chunked", **arguments)
    grads = torch.autograd.grad(loss_of(result), inputs)
    for x, (copied, version) in zip(given, before, strict=True):
        assert torch.equal(x, copied)
        assert x._version == version
    pointers = {x.untyped_storage().data_ptr() for x in given}
    assert not pointers & {x.untyped_storage().data_ptr() for x in [*tensors(result), *grads]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", OPTIONS)
def test_repeated_calls_are_bit_identical(options: str, dtype: torch.dtype) -> None:
    inputs = [x.to(dtype) for x in qkv(options, seq_len=200)]
    arguments = call_arguments(options, BASED, seq_len=200)
    if "state" in arguments:
        arguments["state"] = in_float32(arguments["state"], BASED)
    run = partial(kernel_attention, kernel=BASED, return_state=True, backend="chunked", **arguments)
    first = tensors(with_grads(run, *inputs))
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(tensors(with_grads(run, *inputs)), first, strict=True))


# ---- Copies ----


def _through_pickle(x: Any) -> Any:
    return pickle.loads(pickle.dumps(x))


COPIES = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, _through_pickle])
NAMED_KERNELS = {**KERNELS, "relu": RELU, "square": ELEMENTWISE_SQUARE, "elu": ELU_PLUS_ONE, "rfa 2": RFA(3, seed=1)}


@COPIES
@pytest.mark.parametrize("kernel_name", NAMED_KERNELS)
def test_kernels_can_be_copied(kernel_name: str, copied: Callable[[Any], Any]) -> None:
    """A copy computes the same, bit for bit, and takes the original's states."""
    kernel = NAMED_KERNELS[kernel_name]
    q, k, v = qkv()
    out, state = kernel_attention(q, k, v, kernel, return_state=True)
    again, _ = kernel_attention(q, k, v, copied(kernel), return_state=True)
    assert torch.equal(again, out)
    kernel_attention(q, k, v, copied(kernel), state=state)


@COPIES
def test_kernels_with_learnable_coefficients_can_be_copied(copied: Callable[[Any], Any]) -> None:
    kernel = learned(*(c.requires_grad_() for c in coefficients(NUM_HEADS)))
    other = copied(kernel)
    q, k, v = qkv()
    assert torch.equal(kernel_attention(q, k, v, other), kernel_attention(q, k, v, kernel))
    assert all(c.requires_grad for c in other.terms)
    shared = copied is copy.copy
    assert all((a is b) == shared for a, b in zip(other.terms, kernel.terms, strict=True))


@COPIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_states_can_be_copied(dtype: torch.dtype, copied: Callable[[Any], Any]) -> None:
    q, k, v = (x.to(dtype) for x in qkv())
    _, state = kernel_attention(q, k, v, return_state=True)
    other = copied(state)
    assert other.kernel == state.kernel
    assert all(torch.equal(a, b) for a, b in zip(tensors(other), tensors(state), strict=True))
    assert torch.equal(kernel_attention(q, k, v, state=other), kernel_attention(q, k, v, state=state))
