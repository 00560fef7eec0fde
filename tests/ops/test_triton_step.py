"""A decoding step as one Triton kernel: against plain torch and the sequence form, in place and not."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rebased.kernels import BASED, ELU_PLUS_ONE, REBASED, Kernel, Polynomial
from rebased.ops import KernelState, initial_state, kernel_attention, kernel_attention_step

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def make_kernel(name: str, num_heads: int) -> Kernel:
    if name == "learned":
        return Polynomial(torch.rand(num_heads, device=DEVICE), 0.5, torch.tensor(0.3, device=DEVICE))
    return {"rebased": REBASED, "based": BASED, "linear": Polynomial(0, 1, 0)}[name]


def tensors(state: KernelState) -> dict[str, torch.Tensor]:
    names = ("values", "normalizer", "count", "values_residual", "normalizer_residual")
    return {name: getattr(state, name) for name in names if getattr(state, name) is not None}


@given(
    kernel_name=st.sampled_from(["rebased", "based", "linear", "learned"]),
    heads=st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]),
    feature_dim=st.integers(1, 18),
    head_dim=st.sampled_from([1, 3, 16]),
    normalize=st.booleans(),
    masked=st.booleans(),
    residual=st.booleans(),
    inplace=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40)
def test_equals_plain_torch(
    kernel_name: str,
    heads: tuple[int, int],
    feature_dim: int,
    head_dim: int,
    normalize: bool,
    masked: bool,
    residual: bool,
    inplace: bool,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    key_heads, group = heads
    kernel = make_kernel(kernel_name, key_heads * group)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE)

    k = randn(3, 5, key_heads, feature_dim)
    _, state = kernel_attention(
        k.repeat_interleave(group, 2), k, randn(3, 5, key_heads, head_dim), kernel, return_state=True
    )
    if not residual:
        state = KernelState(state.values, state.normalizer, state.count, state.kernel)
    q, k, v = randn(3, key_heads * group, feature_dim), randn(3, key_heads, feature_dim), randn(3, key_heads, head_dim)
    arguments: dict[str, Any] = {"scale": 0.6, "normalize": normalize}
    if masked:
        arguments["key_mask"] = torch.tensor([True, False, True], device=DEVICE)
        k[1], v[1] = float("nan"), float("nan")
    with torch.no_grad():
        expected, after = kernel_attention_step(q, k, v, state, kernel, backend="torch", **arguments)
        given = state.clone()
        out, new = kernel_attention_step(q, k, v, given, kernel, backend="triton", inplace=inplace, **arguments)
    # The linear kernel's normaliser may cancel, so its quotient is only as good as that is.
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5 * (1 + expected.abs().max().item()))
    assert (new is given) == inplace
    for name, x in tensors(new).items():
        if "residual" in name:  # a rounding of what a rounding left over
            torch.testing.assert_close(x.float(), tensors(after)[name].float(), rtol=0.02, atol=1e-9)
        else:
            torch.testing.assert_close(x, tensors(after)[name], rtol=2e-7, atol=1e-6)
    if not inplace:
        for name, x in tensors(given).items():
            assert torch.equal(x, tensors(state)[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_token_by_token_equals_the_sequence_form(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 12, 2, n, generator=generator).to(DEVICE, dtype) for n in (5, 5, 4))
    expected, end = kernel_attention(q, k, v, BASED, return_state=True, backend="chunked")
    state = initial_state(BASED, 2, 2, 5, 4, device=DEVICE)
    for t in range(12):
        out, state = kernel_attention_step(q[:, t], k[:, t], v[:, t], state, BASED, inplace=True, backend="triton")
        torch.testing.assert_close(out, expected[:, t], rtol=1e-3, atol=1e-3 if dtype == torch.float16 else 1e-5)
    torch.testing.assert_close(state.values, end.values, rtol=1e-5, atol=1e-5)
    assert torch.equal(state.count, end.count)


def test_inplace_writes_the_given_buffers() -> None:
    state = initial_state(REBASED, 2, 2, 5, 4, device=DEVICE)
    pointers = {name: x.data_ptr() for name, x in tensors(state).items()}
    q, k, v = (torch.ones(2, 2, n, device=DEVICE) for n in (5, 5, 4))
    _, new = kernel_attention_step(q, k, v, state, inplace=True, backend="triton")
    assert new is state
    assert {name: x.data_ptr() for name, x in tensors(state).items()} == pointers
    assert (state.values == 1).all()
    assert state.count.tolist() == [1, 1]


def test_vmap_over_tokens_and_states() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 2, 2, n, generator=generator).to(DEVICE) for n in (5, 5, 4))
    states = [initial_state(BASED, 2, 2, 5, 4, device=DEVICE) for _ in range(3)]
    for i, state in enumerate(states):
        state.values.fill_(i + 1.0)
        state.normalizer.fill_(i + 1.0)
    stacked = torch.utils._pytree.tree_map(lambda *xs: torch.stack(xs), *states)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: KernelState) -> Any:
        return kernel_attention_step(q, k, v, state, BASED, backend="triton")

    def step_inplace(*arguments: Any) -> torch.Tensor:
        return kernel_attention_step(*arguments, BASED, inplace=True, backend="triton")[0]

    moved = torch.utils._pytree.tree_map(lambda x: x.clone().movedim(0, 1), stacked)
    out, new = torch.vmap(step)(q, k, v, stacked)
    assert torch.equal(torch.vmap(step_inplace, (0, 0, 0, 1))(q, k, v, moved), out)
    for i, state in enumerate(states):
        expected, after = step(q[i], k[i], v[i], state)
        assert torch.equal(out[i], expected)
        assert torch.equal(new.values[i], after.values)
        assert torch.equal(moved.values[:, i], after.values)


def test_compiles_whole() -> None:
    state = initial_state(REBASED, 2, 2, 5, 4, device=DEVICE)
    q, k, v = (torch.ones(2, 2, n, device=DEVICE) for n in (5, 5, 4))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: KernelState) -> torch.Tensor:
        with torch.no_grad():
            out, _ = kernel_attention_step(q, k, v, state, inplace=True, backend="triton")
        return out * 2

    assert (decode(q, k, v, state) == 2).all()
    assert state.count.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "cuda"}, "backend='cuda' is unknown; it may be 'auto', 'torch', 'triton'"),
        ({"kernel": ELU_PLUS_ONE}, "computes Polynomial kernels"),
        ({"dtype": torch.float64}, "float64"),
        ({"grad": True}, "has no gradient"),
        ({"strided": True}, "needs a contiguous state"),
    ],
)
def test_what_it_cannot_do_is_said(change: dict[str, Any], message: str) -> None:
    kernel, dtype = change.get("kernel", REBASED), change.get("dtype", torch.float32)
    state = initial_state(kernel, 2, 2, 5, 4, device=DEVICE, dtype=dtype)
    if "strided" in change:
        values = state.values.mT.contiguous().mT
        state = KernelState(values, state.normalizer, state.count, state.kernel)
    q, k, v = (torch.ones(2, 2, n, device=DEVICE, dtype=dtype, requires_grad="grad" in change) for n in (5, 5, 4))
    with pytest.raises(ValueError, match=message):
        kernel_attention_step(q, k, v, state, kernel, backend=change.get("backend", "triton"))


def test_a_column_of_a_mask() -> None:
    """Its entries do not lie side by side."""
    state = initial_state(REBASED, 4, 1, 3, 2, device=DEVICE)
    mask = torch.tensor([[True, True], [False, True], [True, False], [False, False]], device=DEVICE)[:, 0]
    q, k, v = (torch.ones(4, 1, n, device=DEVICE) for n in (3, 3, 2))
    _, new = kernel_attention_step(q, k, v, state, key_mask=mask, backend="triton")
    assert new.count.tolist() == [1, 0, 1, 0]


def test_vmap_with_one_shared_state() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 1, 1, n, generator=generator).to(DEVICE) for n in (3, 3, 2))
    state = initial_state(BASED, 1, 1, 3, 2, device=DEVICE)
    state.values.fill_(0.5)
    state.normalizer.fill_(2.0)
    out, new = torch.vmap(lambda *x: kernel_attention_step(*x, state, BASED, backend="triton"))(q, k, v)
    for i in range(3):
        expected, after = kernel_attention_step(q[i], k[i], v[i], state, BASED, backend="torch")
        torch.testing.assert_close(out[i], expected)
        torch.testing.assert_close(new.values[i], after.values)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's jvp warns of torch
@pytest.mark.parametrize("how", ["grad of vmap", "autograd through vmap", "jvp"])
def test_derivatives_are_refused_in_every_guise(how: str) -> None:
    q, k, v = (torch.ones(2, 1, 1, n, device=DEVICE) for n in (3, 3, 2))
    state = initial_state(REBASED, 1, 1, 3, 2, device=DEVICE)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return kernel_attention_step(q, k, v, state, backend="triton")[0]

    differentiate = {
        "grad of vmap": lambda: torch.func.grad(lambda q: torch.vmap(step)(q, k, v).sum())(q),
        "autograd through vmap": lambda: torch.vmap(step)(q.requires_grad_(), k, v),
        "jvp": lambda: torch.func.jvp(lambda q: step(q, k[0], v[0]), (q[0],), (q[0],)),
    }[how]
    with pytest.raises(ValueError, match="has no gradient"):
        differentiate()
