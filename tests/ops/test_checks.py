"""Bad input to the operators: each mistake raises, in words that name the argument, before anything is computed."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rebased.kernels import BASED, REBASED, CosFormer, FeatureMap, Polynomial, Power
from rebased.ops import (
    KernelState,
    attention_matrix,
    initial_state,
    kernel_attention,
    kernel_attention_step,
)

OPERATORS: dict[str, Callable[..., Any]] = {
    "attention": kernel_attention,
    "step": kernel_attention_step,
    "matrix": attention_matrix,
}
B, T, H, HK, F, D = 2, 4, 6, 3, 5, 7

Arguments = dict[str, Any]
Change = Callable[[Arguments], Any]


def good_arguments(operator: str) -> Arguments:
    """A call that is accepted; its float32 tensors have sizes that are all distinct."""
    time = () if operator == "step" else (T,)
    arguments = {"q": torch.randn(B, *time, H, F), "k": torch.randn(B, *time, HK, F), "v": torch.randn(B, *time, HK, D)}
    if operator == "matrix":
        del arguments["v"]
    if operator == "step":
        arguments["state"] = state_of()
    return arguments


def state_of(**changes: Any) -> KernelState:
    sizes = {"kernel": REBASED, "batch_size": B, "num_heads": HK, "feature_dim": F, "head_dim": D}
    return initial_state(**(sizes | changes))


def bad(
    id: str, match: str, on: str = "attention step matrix", error: type[Exception] = ValueError, **changes: Change
) -> list[Any]:
    """A mistake, made on each operator it applies to: arguments replaced by a function of the good ones.

    `attention_matrix` has no v: a change of v passes it by.
    """
    return [pytest.param(operator, changes, error, match, id=f"{operator}: {id}") for operator in on.split()]


def same(name: str, function: Callable[[Tensor], Any]) -> Change:
    return lambda arguments: function(arguments[name])


def always(value: Any) -> Change:
    return lambda arguments: value


def replaced(**changes: Any) -> Change:
    """The state of a good call with other fields."""
    return always(replace(state_of(), **changes))


def to_meta(x: Tensor) -> Tensor:
    return x.to(torch.device("meta"))


INPUTS = [
    *bad("q a list", "^q is a list; it must be a tensor", error=TypeError, q=same("q", Tensor.tolist)),
    *bad("k missing", "^k is a NoneType", error=TypeError, k=always(None)),
    *bad("v a number", "^v is a float", "attention step", error=TypeError, v=always(1.0)),
    *bad("q with an axis less", r"^q has shape \(.*\); it must have \d axes", q=same("q", lambda q: q[..., 0])),
    *bad("k with an axis more", r"^k has shape \(.*\); it must have \d axes", k=same("k", lambda k: k[None])),
    *bad("v without heads", r"^v has shape", "attention step", v=same("v", lambda v: v[..., 0, :])),
    *bad("q of integers", r"^q has dtype torch.int64; it may be float16", q=same("q", Tensor.long)),
    *bad("k of bools", r"^k has dtype torch.bool", k=same("k", Tensor.bool)),
    *bad("v of integers", r"^v has dtype torch.int32", "attention step", v=same("v", Tensor.int)),
    *bad("q complex", r"^q has dtype torch.complex64", q=same("q", lambda q: q.to(torch.complex64))),
    *bad("q without heads", r"^q has shape .*0, 5\); its heads", q=same("q", lambda q: q[..., :0, :])),
    *bad("q of size 0", r"^q has shape .*6, 0\); its heads", q=same("q", lambda q: q[..., :0])),
    *bad("k of no heads", r"^k has shape .*0, 5\); its heads", k=same("k", lambda k: k[..., :0, :])),
    *bad("v of size 0", r"^v has shape .*3, 0\); its heads", "attention step", v=same("v", lambda v: v[..., :0])),
    *bad("k on another device", "^k is on meta, q on cpu; all", k=same("k", to_meta)),
    *bad("v on another device", "^v is on meta, q on cpu; all", "attention step", v=same("v", to_meta)),
    *bad("q on another device", "^k is on cpu, q on meta; all", q=same("q", to_meta)),
    *bad("k of another batch", "^k has batch size 1, q has 2", k=same("k", lambda k: k[:1])),
    *bad("v of another batch", "^v has batch size 1, q has 2", "attention step", v=same("v", lambda v: v[:1])),
    *bad("k of another feature_dim", "^k has feature_dim 4, q has 5", k=same("k", lambda k: k[..., :4])),
    *bad("v of other heads", r"^v has shape .*, k \(", "attention step", v=same("v", lambda v: v[..., :2, :])),
    *bad("v of another length", r"^v has shape \(2, 3, .*, k \(2, 4", "attention", v=same("v", lambda v: v[:, :3])),
    *bad("k and v shorter than q", "^q has 4 positions, k has 3.*`at`", "attention matrix",
         k=same("k", lambda k: k[:, :3]), v=always(torch.randn(B, 3, HK, D))),
    *bad("heads that do not divide", "^k has 3 heads, q has 5;", q=same("q", lambda q: q[..., :5, :])),
    *bad("more key heads than query heads", "^k has 3 heads, q has 1;", q=same("q", lambda q: q[..., :1, :])),
    *bad("k in another dtype", "^k has dtype torch.float64, q has torch.float32; outside", k=same("k", Tensor.double)),
    *bad("v in another dtype", "^v has dtype torch.bfloat16, q has torch.float32; outside", "attention step",
         v=same("v", Tensor.bfloat16)),
]  # fmt: skip

SETTINGS = [
    *bad("kernel by name", "^kernel is 'rebased'", error=TypeError, kernel=always("rebased")),
    *bad("kernel missing", "^kernel is None", error=TypeError, kernel=always(None)),
    *bad("a kernel's class", "^kernel is <class", error=TypeError, kernel=always(Polynomial)),
    *bad("eps negative", "^eps=-1e-06 must not be negative", eps=always(-1e-6)),
    *bad("eps not a number", "^eps=nan must be finite", eps=always(math.nan)),
    *bad("eps infinite", "^eps=inf must be finite", eps=always(math.inf)),
    *bad("eps missing", "^eps is None", error=TypeError, eps=always(None)),
    *bad("eps a tensor", r"^eps is tensor", error=TypeError, eps=always(torch.tensor(0.1))),
    *bad("scale infinite", "^scale=-inf must be finite", scale=always(-math.inf)),
    *bad("scale not a number", "^scale=nan must be finite", scale=always(math.nan)),
    *bad("scale a string", "^scale is '1'", error=TypeError, scale=always("1")),
    *bad("scale a bool", "^scale is True", error=TypeError, scale=always(True)),
    *bad("backend unknown", "^backend='flash' is unknown; it may be 'auto', 'reference'", "attention",
         backend=always("flash")),
    *bad("backend missing", "^backend=None is unknown", "attention", backend=always(None)),
    *bad("coefficients of other heads", "c2 has 4 entries, queries have 6 heads", "attention step matrix",
         kernel=always(Polynomial(0, 0, torch.ones(4)))),
]  # fmt: skip

KEY_MASK = [
    *bad("key_mask a list", "^key_mask is a list", error=TypeError, key_mask=always([True] * B)),
    *bad("key_mask of numbers", "^key_mask has dtype torch.float32; it must be bool", "attention matrix",
         key_mask=always(torch.ones(B, T))),
    *bad("key_mask of integers", "^key_mask has dtype torch.int64; it must be bool", "step",
         key_mask=always(torch.ones(B, dtype=torch.int64))),
    *bad("key_mask too short", r"^key_mask has shape \(2, 3\); it must be \(2, 4\)", "attention matrix",
         key_mask=always(torch.ones(B, T - 1, dtype=torch.bool))),
    *bad("key_mask to broadcast", r"^key_mask has shape \(1, 4\); it must be \(2, 4\)", "attention matrix",
         key_mask=always(torch.ones(1, T, dtype=torch.bool))),
    *bad("key_mask with time", r"^key_mask has shape \(2, 1\); it must be \(2,\)", "step",
         key_mask=always(torch.ones(B, 1, dtype=torch.bool))),
    *bad("key_mask on another device", "^key_mask is on meta, the inputs on cpu",
         key_mask=always(torch.ones(B, T, dtype=torch.bool, device="meta"))),
]  # fmt: skip

ONE_ROW = {name: same(name, lambda x: x[:1]) for name in ("q", "k", "v")}


def bad_borders(id: str, match: str, cu_seqlens: Any, error: type[Exception] = ValueError) -> list[Any]:
    return bad(id, match, "attention matrix", error, cu_seqlens=always(cu_seqlens), **ONE_ROW)


CU_SEQLENS = [
    *bad_borders("cu_seqlens a list", "^cu_seqlens is a list", [0, T], TypeError),
    *bad_borders("cu_seqlens decreasing", r"^cu_seqlens=\[0, 3, 2, 4\] must not decrease", torch.tensor([0, 3, 2, 4])),
    *bad_borders("cu_seqlens from 1", r"^cu_seqlens=\[1, 4\] must begin with 0", torch.tensor([1, 4])),
    *bad_borders("cu_seqlens too short", r"^cu_seqlens=\[0, 3\] .* end with 4", torch.tensor([0, 3])),
    *bad_borders("cu_seqlens too long", r"^cu_seqlens=\[0, 2, 5\] .* end with 4", torch.tensor([0, 2, 5])),
    *bad_borders("cu_seqlens of floats", "^cu_seqlens has dtype torch.float32; it must be", torch.tensor([0.0, 4])),
    *bad_borders("cu_seqlens of bytes", "^cu_seqlens has dtype torch.uint8", torch.tensor([0, 4], dtype=torch.uint8)),
    *bad_borders("cu_seqlens empty", r"^cu_seqlens has shape \(0,\)", torch.tensor([], dtype=torch.int64)),
    *bad_borders("cu_seqlens a matrix", r"^cu_seqlens has shape \(1, 2\)", torch.tensor([[0, 4]])),
    *bad_borders("cu_seqlens on another device", "^cu_seqlens is on meta", torch.tensor([0, 4], device="meta")),
    *bad("cu_seqlens for a batch", "^cu_seqlens packs .* batch size must be 1, got 2", "attention matrix",
         cu_seqlens=always(torch.tensor([0, 4]))),
]  # fmt: skip


def bad_positions(id: str, match: str, at: Any, error: type[Exception] = ValueError) -> list[Any]:
    return bad(id, match, "attention matrix", error, q=same("q", lambda q: q[:, :2]), at=always(at))


AT = [
    *bad_positions("at a list", "^at is a list", [[0, 1], [2, 3]], TypeError),
    *bad_positions("at past the end", r"^at reaches from 0 to 4; .* 0 \.\. 3", torch.tensor([[0, 1], [2, 4]])),
    *bad_positions("at before the start", r"^at reaches from -1 to 3", torch.tensor([[0, -1], [2, 3]])),
    *bad_positions("at of floats", "^at has dtype torch.float32; it must be int32", torch.ones(B, 2)),
    *bad_positions("at of bools", "^at has dtype torch.bool", torch.ones(B, 2, dtype=torch.bool)),
    *bad_positions("at without a batch", r"^at has shape \(2,\); it must be \(2, 2\)", torch.tensor([0, 1])),
    *bad_positions("at of another batch", r"^at has shape \(1, 2\); it must be \(2, 2\)", torch.tensor([[0, 1]])),
    *bad_positions("at longer than q", r"^at has shape \(2, 3\)", torch.zeros(B, 3, dtype=torch.int64)),
    *bad_positions("at on another device", "^at is on meta", torch.zeros(B, 2, dtype=torch.int64, device="meta")),
]  # fmt: skip


def bad_state(id: str, match: str, change: Change, error: type[Exception] = ValueError, **others: Change) -> list[Any]:
    return bad(id, match, "attention step", error, state=change, **others)


STATE = [
    *bad_state("state a tuple", "^state is a tuple", always(()), TypeError),
    *bad("state missing", "^state is a NoneType", "step", TypeError, state=always(None)),
    *bad_state("state of another kernel", "^state was made by the kernel 'monomials of degree 0, 1, 2'",
               always(state_of(kernel=BASED))),
    *bad_state("state of another batch", r"^state\.values has shape \(1, 3, 15, 7\); these inputs need \(2, 3, 15, 7\)",
               always(state_of(batch_size=1))),
    *bad_state("state of query heads", r"^state\.values has shape \(2, 6, ", always(state_of(num_heads=H))),
    *bad_state("state of another feature_dim", r"^state\.values has shape \(2, 3, 10, 7\)",
               always(state_of(feature_dim=4))),
    *bad_state("state of another head_dim", r"^state\.values has shape \(2, 3, 15, 6\)", always(state_of(head_dim=6))),
    *bad_state("state with a wrong normaliser", r"^state\.normalizer has shape \(2, 3, 14\)",
               replaced(normalizer=torch.zeros(B, HK, 14))),
    *bad_state("state with a wrong count", r"^state\.count has shape \(3,\)",
               replaced(count=torch.zeros(3, dtype=torch.int64))),
    *bad_state("state of float64", r"^state\.values has dtype torch.float64; these inputs need torch.float32",
               always(state_of(dtype=torch.float64))),
    *bad_state("state of float32 for float64", r"^state\.values has dtype torch.float32; .* need torch.float64",
               always(state_of()), q=same("q", Tensor.double), k=same("k", Tensor.double), v=same("v", Tensor.double)),
    *bad_state("state's normaliser of bfloat16", r"^state\.normalizer has dtype torch.bfloat16",
               replaced(normalizer=torch.zeros(B, HK, 15, dtype=torch.bfloat16))),
    *bad_state("state on another device", r"^state\.values is on meta, q on cpu", always(state_of(device="meta"))),
    *bad("one state for two packed sequences", r"^state\.values has shape \(1, .* need \(2, ", "attention",
         state=always(state_of(batch_size=1)), cu_seqlens=always(torch.tensor([0, 1, 4])), **ONE_ROW),
]  # fmt: skip

POSITIONS = [
    *bad("a sequence longer than max_len", r"max_len.* reaches from 0 to 3; .* 0 \.\. 2", "attention matrix",
         kernel=always(CosFormer(3))),
    *bad("a state at max_len", r"^state\.count \(kernel\.max_len\) reaches from 3 to 3", "step",
         kernel=always(CosFormer(3)),
         state=always(replace(state_of(kernel=CosFormer(3)), count=torch.tensor([3, 3])))),
    *bad("a state that leaves too little room", r"max_len.* reaches from 2 to 5", "attention",
         kernel=always(CosFormer(5)),
         state=always(replace(state_of(kernel=CosFormer(5)), count=torch.tensor([2, 2])))),
]  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_good_arguments_are_accepted(operator: str) -> None:
    """Otherwise the cases below might raise for a reason of their own."""
    OPERATORS[operator](**good_arguments(operator))


@pytest.mark.parametrize(
    ("operator", "changes", "error", "match"),
    [*INPUTS, *SETTINGS, *KEY_MASK, *CU_SEQLENS, *AT, *STATE, *POSITIONS],
)
def test_bad_argument_is_named(operator: str, changes: dict[str, Change], error: type[Exception], match: str) -> None:
    arguments = good_arguments(operator)
    changed = {name: change(arguments) for name, change in changes.items() if operator != "matrix" or name != "v"}
    with pytest.raises(error, match=match):
        OPERATORS[operator](**(arguments | changed))


@pytest.mark.parametrize("operator", OPERATORS)
def test_everything_after_the_kernel_is_by_name(operator: str) -> None:
    arguments = good_arguments(operator)
    with pytest.raises(TypeError, match="positional argument"):
        OPERATORS[operator](*arguments.values(), REBASED, 0.5)


@pytest.mark.parametrize("operator", OPERATORS)
def test_autocast_settles_mixed_dtypes(operator: str) -> None:
    arguments = good_arguments(operator)
    arguments["k"] = arguments["k"].bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        OPERATORS[operator](**arguments)
        arguments["k"] = arguments["k"].double()  # which autocast leaves alone
        with pytest.raises(ValueError, match=r"^k has dtype torch.float64, q has torch.bfloat16"):
            OPERATORS[operator](**arguments)


@pytest.mark.parametrize("backend", ["auto", "reference", "chunked"])
def test_every_backend_is_behind_the_checks(backend: str) -> None:
    arguments = good_arguments("attention")
    with pytest.raises(ValueError, match=r"^at reaches from 9 to 9"):
        kernel_attention(**arguments, at=torch.full((B, T), 9), backend=backend)


@pytest.mark.parametrize(
    ("cu_seqlens", "at"),
    [
        pytest.param(torch.tensor([0, 0, T, T], dtype=torch.int32), None, id="int32 borders, empty sequences"),
        pytest.param(None, torch.tensor([[3, 0, 0, 3]], dtype=torch.int32), id="int32 positions, first and last"),
    ],
)
def test_what_looks_unusual_but_is_fine(cu_seqlens: Tensor | None, at: Tensor | None) -> None:
    arguments = {name: x[:1] for name, x in good_arguments("attention").items()}
    assert kernel_attention(**arguments, cu_seqlens=cu_seqlens, at=at).shape == (1, T, H, D)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_padding_on_the_left_takes_no_position(backend: str) -> None:
    arguments, kernel = good_arguments("attention"), CosFormer(T - 1)
    key_mask = torch.tensor([False] + [True] * (T - 1)).expand(B, T)
    padded = kernel_attention(**arguments, kernel=kernel, key_mask=key_mask, backend=backend)
    bare = {name: x[:, 1:] for name, x in arguments.items()}
    torch.testing.assert_close(padded[:, 1:], kernel_attention(**bare, kernel=kernel, backend=backend))


# ---- A step that overwrites its state ----


@pytest.mark.parametrize("name", ["q", "k", "v", "state.values", "state.normalizer"])
def test_inplace_refuses_what_needs_gradients(name: str) -> None:
    arguments = good_arguments("step")
    owner, _, field = name.partition(".")
    leaf = getattr(arguments[owner], field) if field else arguments[owner]
    leaf.requires_grad_()
    with pytest.raises(ValueError, match=r"^inplace=True overwrites what gradients need"):
        kernel_attention_step(**arguments, inplace=True)
    with torch.no_grad():
        kernel_attention_step(**arguments, inplace=True)


def test_inplace_refuses_learnable_coefficients() -> None:
    kernel = Polynomial(0, 0, torch.nn.Parameter(torch.tensor(1.0)))
    with pytest.raises(ValueError, match=r"^inplace=True overwrites what gradients need"):
        kernel_attention_step(**good_arguments("step"), kernel=kernel, inplace=True)


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param({"key_mask": torch.ones(B)}, id="key_mask"),
        pytest.param({"eps": -1.0}, id="eps"),
        pytest.param({"v": torch.randn(B, HK, D + 1)}, id="v"),
        pytest.param({"q": torch.randn(B, H, F).requires_grad_()}, id="gradients"),
    ],
)
def test_a_refused_step_leaves_its_state_alone(mistake: Arguments) -> None:
    arguments = good_arguments("step")
    with pytest.raises(ValueError, match=r"^(key_mask|eps|state\.values|inplace)"):
        kernel_attention_step(**(arguments | mistake), inplace=True)
    state = arguments["state"]
    assert not any(x.any() for x in (state.values, state.normalizer, state.count))


# ---- Values are checked in compiled graphs too ----


@pytest.fixture
def compiled() -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.compile(kernel_attention, fullgraph=True, backend="aot_eager")


def test_at_is_checked_inside_a_compiled_graph(compiled: Callable[..., Any]) -> None:
    arguments = good_arguments("attention")
    at = torch.arange(T).expand(B, T)
    torch.testing.assert_close(compiled(**arguments, at=at), kernel_attention(**arguments, at=at))
    with pytest.raises(ValueError, match=r"^at reaches from 1 to 4"):
        compiled(**arguments, at=at + 1)
    with pytest.raises(ValueError, match=r"^at reaches from -1 to 2"):
        compiled(**arguments, at=at - 1)


def test_cu_seqlens_is_checked_inside_a_compiled_graph(compiled: Callable[..., Any]) -> None:
    arguments = {name: x[:1] for name, x in good_arguments("attention").items()}
    borders = torch.tensor([0, 1, T])
    torch.testing.assert_close(
        compiled(**arguments, cu_seqlens=borders), kernel_attention(**arguments, cu_seqlens=borders)
    )
    with pytest.raises(ValueError, match=r"^cu_seqlens=\[0, 5, 4\] must not decrease"):
        compiled(**arguments, cu_seqlens=torch.tensor([0, 5, T]))
    with pytest.raises(ValueError, match=r"^cu_seqlens=\[0, 1, 3\] must begin with 0 and end with 4"):
        compiled(**arguments, cu_seqlens=torch.tensor([0, 1, T - 1]))


def test_max_len_is_checked_inside_a_compiled_graph() -> None:
    torch.compiler.reset()
    kernel, arguments = CosFormer(5), good_arguments("attention")
    compiled = torch.compile(
        lambda **arguments: kernel_attention(**arguments, kernel=kernel), fullgraph=True, backend="aot_eager"
    )
    state = state_of(kernel=kernel)
    assert compiled(**arguments, state=state).shape == (B, T, H, D)
    with pytest.raises(ValueError, match=r"max_len.* reaches from 2 to 5"):
        compiled(**arguments, state=replace(state, count=state.count + 2))


# ---- initial_state ----


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        pytest.param({"batch_size": -1}, ValueError, "^batch_size=-1 must be at least 0", id="batch_size"),
        pytest.param({"num_heads": 0}, ValueError, "^num_heads=0", id="num_heads"),
        pytest.param({"feature_dim": 0}, ValueError, "^feature_dim=0", id="feature_dim"),
        pytest.param({"head_dim": 0}, ValueError, "^head_dim=0", id="head_dim"),
        pytest.param({"dtype": torch.bfloat16}, ValueError, "^dtype=torch.bfloat16", id="dtype"),
        pytest.param({"kernel": "rebased"}, TypeError, "^kernel is 'rebased'", id="kernel"),
    ],
)
def test_initial_state_names_its_bad_argument(changes: Arguments, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        state_of(**changes)


def test_padding_beyond_max_len_is_no_position() -> None:
    """Masked tokens stand where the last real one does, so a padded tail may run past what the kernel can tell."""
    kernel = CosFormer(3)
    q, k, v = (torch.randn(1, 5, 1, n, dtype=torch.float64) for n in (2, 2, 3))
    mask = torch.tensor([[True, True, True, False, False]])
    for backend in ("reference", "chunked"):
        padded, state = kernel_attention(q, k, v, kernel, key_mask=mask, return_state=True, backend=backend)
        plain = kernel_attention(q[:, :3], k[:, :3], v[:, :3], kernel, backend=backend)
        torch.testing.assert_close(padded[:, :3], plain)
        out, _ = kernel_attention_step(q[:, 3], k[:, 3], v[:, 3], state, kernel, key_mask=mask[:, 3])
        torch.testing.assert_close(out, padded[:, 3])


@pytest.mark.parametrize("operator", OPERATORS)
def test_switches_are_true_or_false(operator: str) -> None:
    for switch in {"attention": ("normalize", "causal", "return_state"), "matrix": ("normalize", "causal")}.get(
        operator, ("normalize", "inplace")
    ):
        with pytest.raises(TypeError, match=switch):
            OPERATORS[operator](**good_arguments(operator), **{switch: "no"})


def test_more_features_than_a_state_can_hold() -> None:
    q, v = torch.randn(1, 3, 1, 64), torch.randn(1, 3, 1, 2)
    with pytest.raises(ValueError, match="feature_dim=64 gives"):
        kernel_attention(q, q, v, Power(8))
    with pytest.raises(ValueError, match="feature_dim=64 gives"):
        initial_state(Power(8), 1, 1, 64, 2)
    assert kernel_attention(q, q, v, Power(8), backend="reference").shape == v.shape


def test_a_state_moves_between_devices_not_dtypes() -> None:
    with pytest.raises(TypeError, match="device is torch"):
        state_of().to(torch.float64)


def test_a_feature_map_keeps_the_axes() -> None:
    q = torch.randn(1, 3, 2, 4)
    kernel = FeatureMap(lambda x: x[..., 0], name="first entry")
    with pytest.raises(ValueError, match="'first entry' maps"):
        kernel_attention(q, q, q, kernel)
