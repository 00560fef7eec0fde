"""Kernel attention in the precisions people use: error, range, drift."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracles import with_gradients
from rebased.bench.drift import measure_drift
from rebased.kernels import (
    BASED,
    DPFP,
    ELEMENTWISE_SQUARE,
    ELU_PLUS_ONE,
    REBASED,
    RELU,
    CosFormer,
    FeatureMap,
    Kernel,
    Polynomial,
    Power,
)
from rebased.ops import attention_matrix, initial_state, kernel_attention, kernel_attention_step
from tolerances import assert_close_in, relative_rms

KERNELS = {
    "rebased": REBASED,
    "based": BASED,
    "power 4": Power(4),
    "elu+1": ELU_PLUS_ONE,
    "square": ELEMENTWISE_SQUARE,
    "cosformer": CosFormer(5000),
    "dpfp": DPFP(2),
}
NONNEGATIVE = {**KERNELS, "relu": RELU, "power 6": Power(6), "power 8": Power(8), "touching zero": Polynomial(1, -2, 1)}


def random_qkv(
    seq_len: int, feature_dim: int, head_dim: int, dtype: torch.dtype, *, seed: int = 0, batch_size: int = 2
) -> dict[str, torch.Tensor]:
    """3 heads; all sizes distinct, so that swapped axes cannot cancel."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"q": feature_dim, "k": feature_dim, "v": head_dim}
    return {
        name: torch.randn(batch_size, seq_len, 3, size, generator=generator).to(dtype) for name, size in sizes.items()
    }


def results(inputs: dict[str, torch.Tensor], kernel: Kernel, backend: str) -> dict[str, torch.Tensor]:
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    return with_gradients(
        lambda: kernel_attention(*leaves.values(), kernel, return_state=True, backend=backend), leaves
    )


@pytest.mark.parametrize("seq_len", [1, 2, 63, 64, 65, 300])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["float32", "float16", "bfloat16"]
)
def test_error_against_float64(dtype: torch.dtype, kernel: Kernel, seq_len: int) -> None:
    """The oracle sees the same rounded inputs; output, state and gradients are compared."""
    feature_dim = 5 if kernel is KERNELS["power 4"] else 16
    inputs = random_qkv(seq_len, feature_dim, 20, dtype)
    expected = results({name: x.double() for name, x in inputs.items()}, kernel, "reference")
    actual, baseline = results(inputs, kernel, "chunked"), results(inputs, kernel, "reference")
    assert_close_in(dtype, actual, expected, baseline, floor=expected["out"].norm().item() if seq_len == 1 else 0.0)


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("kernel", NONNEGATIVE.values(), ids=NONNEGATIVE.keys())
@given(
    seed=st.integers(0, 2**32),
    seq_len=st.integers(1, 300),
    feature_dim=st.integers(1, 4),
    magnitudes=st.tuples(*[st.sampled_from([0.0, 1e-30, 1e-10, 1e-3, 1.0, 1e3])] * 3),
    sparsity=st.sampled_from([0.0, 0.5, 0.95]),
)
@example(seed=0, seq_len=300, feature_dim=4, magnitudes=(1e3, 1e3, 1e3), sparsity=0.0)
@settings(max_examples=25)
def test_finite_and_inside_the_range_of_v_and_zero(kernel, backend, seed, seq_len, feature_dim, magnitudes, sparsity):
    """For every non-negative kernel and any input up to 1e3, outputs and gradients alike are finite."""
    inputs = random_qkv(seq_len, feature_dim, 2, torch.float32, seed=seed, batch_size=1)
    generator = torch.Generator().manual_seed(seed)
    for (name, x), magnitude in zip(inputs.items(), magnitudes, strict=True):
        x = x.clamp(-1, 1) * magnitude
        inputs[name] = x * (torch.rand(x.shape, generator=generator) >= sparsity)
    found = results(inputs, kernel, backend)
    for name, x in found.items():
        assert x.isfinite().all(), name
    assert_in_range(found["out"], inputs["v"])


def assert_in_range(out: torch.Tensor, v: torch.Tensor) -> None:
    slack = 1e-4 * v.abs().max()
    assert (out <= v.amax(dim=1, keepdim=True).clamp(min=0) + slack).all()
    assert (out >= v.amin(dim=1, keepdim=True).clamp(max=0) - slack).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kernel", [REBASED, Power(4)], ids=["rebased", "power 4"])
@pytest.mark.parametrize("route", ["direct", "through chunks", "through a state", "by steps"])
def test_queries_orthogonal_to_every_key_get_zero(route: str, kernel: Kernel, dtype: torch.dtype) -> None:
    """Similarity is zero in exact arithmetic, rounding error in the state's; positive values show any leak."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 600, 2, 6, dtype=torch.float64, generator=generator)
    k = torch.randn(1, 600, 2, 6, dtype=torch.float64, generator=generator)
    direction = torch.nn.functional.normalize(q[:, -1:], dim=-1)
    k = k - (k * direction).sum(-1, keepdim=True) * direction
    q = direction.expand_as(q)
    v = torch.rand(1, 600, 2, 3, dtype=torch.float64, generator=generator) + 1
    q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if route == "direct":
        out = kernel_attention(q[:, :40], k[:, :40], v[:, :40], kernel)
        # Rounding of q and k alone: a similarity that is not quite zero is weighed like any other.
        assert out.isfinite().all()
        assert_in_range(out, v)
        return
    if route == "through chunks":
        out = kernel_attention(q, k, v, kernel, causal=False)
    elif route == "through a state":
        _, state = kernel_attention(q, k, v, kernel, return_state=True)
        mask = torch.zeros(1, 1, dtype=torch.bool)
        out = kernel_attention(q[:, :1], k[:, :1], v[:, :1], kernel, state=state, key_mask=mask)
    else:
        state = initial_state(kernel, 1, 2, 6, 3, dtype=dtype)
        for t in range(600):
            out, state = kernel_attention_step(q[:, t], k[:, t], v[:, t], state, kernel)
        mask = torch.zeros(1, dtype=torch.bool)
        out, _ = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state, kernel, key_mask=mask)
    assert (out == 0).all(), out.abs().max()


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_powers_of_large_inputs_keep_their_value(p: int) -> None:
    """Finite is not enough: sums of k^p beyond 1e19 once made every output 0."""
    inputs = random_qkv(600, 4, 3, torch.float32)
    inputs = {name: x.clamp(-3, 3) * 333 for name, x in inputs.items()}
    expected = results({name: x.double() for name, x in inputs.items()}, Power(p), "reference")
    actual, baseline = results(inputs, Power(p), "chunked"), results(inputs, Power(p), "reference")
    assert_close_in(torch.float32, actual, expected, baseline)


@pytest.mark.parametrize("route", ["chunked", "reference", "by steps"])
def test_large_orthogonal_keys_do_not_hide_a_match(route: str) -> None:
    """Whether the state's part is rounding error is judged by that part alone."""
    k = torch.zeros(1, 400, 1, 2)
    k[:, :256, :, 0] = 30.0
    k[:, 256:, :, 1] = 0.1
    q = torch.zeros_like(k)
    q[..., 1] = 1
    v = torch.ones(1, 400, 1, 1)
    if route == "by steps":
        state = initial_state(REBASED, 1, 1, 2, 1)
        for t in range(300):
            out, state = kernel_attention_step(q[:, t], k[:, t], v[:, t], state)
        assert out.item() == pytest.approx(1)
    else:
        out = kernel_attention(q, k, v, backend=route)[0, :, 0, 0]
        assert (out[:256] == 0).all()
        torch.testing.assert_close(out[256:], torch.ones(144))


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_a_double_root_never_rounds_below_zero(backend: str) -> None:
    """(0.5 + 3s)² as a sum of three terms, around its root: weights of both signs once gave outputs beyond ±9."""
    kernel = Polynomial(0.25, 3.0, 9.0)
    assert kernel.nonnegative
    generator = torch.Generator().manual_seed(0)
    s = -0.5 / 3 * (1 + 2e-4 * (torch.rand(50, 100, 1, 1, generator=generator) * 2 - 1))
    v = torch.randint(0, 2, s.shape, generator=generator) * 2.0 - 1
    assert (attention_matrix(torch.ones_like(s), s, kernel, scale=1.0) >= 0).all()
    out = kernel_attention(torch.ones_like(s), s, v, kernel, scale=1.0, backend=backend)
    assert out.abs().max() <= 1.05


@pytest.mark.parametrize("backend", ["reference", "chunked"])
def test_signed_features_of_a_nonnegative_map_stay_in_range(backend: str) -> None:
    """A user's map whose products cancel, on queries that are nearly orthogonal to every key."""
    kernel = FeatureMap(lambda x: (x[..., :, None] * x[..., None, :]).flatten(-2), name="outer", nonnegative=True)
    generator = torch.Generator().manual_seed(0)
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=generator))[0]
    k = torch.randn(1, 700, 1, 3, generator=generator) * torch.tensor([1e-4, 1, 1]) @ rotation
    v = torch.rand(1, 700, 1, 4, generator=generator)
    _, state = kernel_attention(k, k, v, kernel, return_state=True)
    for start in (None, state):
        out = kernel_attention(rotation[:1].expand(1, 700, 1, 3), k, v, kernel, state=start, backend=backend)
        # At the border of what counts as zero, rounding is a thirty-second of what is left.
        assert out.min() >= -0.05
        assert out.max() <= v.max() * 1.05


def test_elu_plus_one_keeps_small_exponentials() -> None:
    """elu(x) + 1 would round exp(-20) away; attention over such keys once came out as 0."""
    inputs = random_qkv(100, 4, 3, torch.float32)
    inputs |= {name: inputs[name] - 20 for name in ("q", "k")}
    out = kernel_attention(*inputs.values(), ELU_PLUS_ONE, eps=0.0)
    exact = kernel_attention(*(x.double() for x in inputs.values()), ELU_PLUS_ONE, eps=0.0, backend="reference")
    assert relative_rms(out, exact) < 1e-5


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("seq_len", [5, 300])
def test_exact_zeros_give_exact_zero(backend: str, seq_len: int) -> None:
    """Keys and queries on different axes: no similarity, no rounding, output 0 whatever eps is."""
    q, k, v = (torch.ones(1, seq_len, 1, n) for n in (4, 4, 3))
    q[..., 2:] = 0
    k[..., :2] = 0
    for eps in (1e-12, 0.0):
        assert (kernel_attention(q, k, v, REBASED, eps=eps, backend=backend) == 0).all()


def drift(kernel: Kernel, tokens: str) -> float:
    """Relative error of a float32 state after a million tokens, fed in pieces of 4096."""
    generator = torch.Generator().manual_seed(0)
    states = {dtype: initial_state(kernel, 1, 1, 8, 4, dtype=dtype) for dtype in (torch.float32, torch.float64)}
    for _ in range(10**6 // 4096 + 1):
        k, v = (torch.randn(1, 4096, 1, n, generator=generator) for n in (8, 4))
        if tokens == "equal":
            k, v = torch.full_like(k, 0.1), torch.full_like(v, 0.1)
        for dtype in states:
            nothing = torch.empty(1, 0, 1, 8, dtype=dtype)
            _, states[dtype] = kernel_attention(
                nothing,
                k.to(dtype),
                v.to(dtype),
                kernel,
                at=torch.empty(1, 0, dtype=torch.int64),
                state=states[dtype],
                return_state=True,
            )
    single, double = states.values()
    assert int(single.count) >= 10**6
    return max(relative_rms(single.values, double.values), relative_rms(single.normalizer, double.normalizer))


@pytest.mark.parametrize("tokens", ["random", "equal"])
@pytest.mark.parametrize("kernel", [REBASED, BASED], ids=["rebased", "based"])
def test_a_million_tokens_in_pieces_drift_little(kernel: Kernel, tokens: str) -> None:
    """Equal tokens are the worst case: every addition rounds the same way."""
    assert drift(kernel, tokens) < 1e-4


@pytest.mark.slow
def test_a_million_tokens_one_by_one_drift_little() -> None:
    """Decoding: a million additions in a row, by the measurement that docs/numerics.md quotes."""
    for each in measure_drift(10**6).drifts:
        if not each.feed.endswith("without residual"):
            assert each.values_error < 1e-4, each
            assert each.normalizer_error < 1e-4, each
