"""Bugs that users reported against other implementations of these operators, each as a test of ours.

Numbers are issues of flash-linear-attention (fla). What is expected comes from `definition`, which knows nothing of
features, chunks or states.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from rebased.kernels import BASED, REBASED, Kernel
from rebased.ops import initial_state, kernel_attention, kernel_attention_step
from tolerances import RELATIVE_RMS, relative_rms

SIMILARITY: dict[Kernel, Callable[[Tensor], Tensor]] = {
    REBASED: lambda s: s.square(),
    BASED: lambda s: 1 + s + s.square() / 2,
}
both_kernels = pytest.mark.parametrize("kernel", [REBASED, BASED], ids=["rebased", "based"])
both_backends = pytest.mark.parametrize("backend", ["reference", "chunked"])


def random_qkv(
    *,
    batch_size: int = 2,
    seq_len: int,
    num_heads: int = 3,
    feature_dim: int = 16,
    head_dim: int,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch_size, seq_len, num_heads, size, dtype=torch.float64, generator=generator)
        .to(dtype)
        .requires_grad_()
        for size in (feature_dim, feature_dim, head_dim)
    ]


def definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: Kernel,
    *,
    scale: float | None = None,
    eps: float = 1e-12,
    normalize: bool = True,
) -> Tensor:
    s = torch.einsum("bthf,bshf->bhts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = SIMILARITY[kernel](s).tril()
    out = torch.einsum("bhts,bshd->bthd", weights, v)
    return out / (weights.sum(dim=-1).transpose(1, 2)[..., None] + eps) if normalize else out


def with_gradients(out: Tensor, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
    cotangent = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad(out, leaves, cotangent.to(out.dtype))
    return {"out": out.detach()} | dict(zip(("dq", "dk", "dv"), grads, strict=True))


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    for name, want in expected.items():
        assert actual[name].shape == want.shape
        assert relative_rms(actual[name], want) <= tolerance, name


@both_backends
@both_kernels
@pytest.mark.parametrize("head_dim", [64, 21, 1], ids="D={}".format)
def test_fla_654_head_dim_other_than_feature_dim(kernel: Kernel, backend: str, head_dim: int) -> None:
    """In fla #654, the ReBased layer fails with its own default sizes, wherever head_dim is not feature_dim."""
    leaves = random_qkv(seq_len=150, feature_dim=16, head_dim=head_dim)
    out, state = kernel_attention(*leaves, kernel, return_state=True, backend=backend)
    expected = definition(*leaves, kernel)
    assert_close(with_gradients(out, leaves), with_gradients(expected, leaves), 1e-10)
    assert state.values.shape == (2, 3, kernel.num_features(16), head_dim)
    q, k, v = random_qkv(seq_len=1, feature_dim=16, head_dim=head_dim)
    last, _ = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state, kernel)
    assert last.shape == (2, 3, head_dim)


@both_backends
@both_kernels
@pytest.mark.parametrize(
    "pieces", [[1, 150, 5], [64, 128], [1] * 12], ids=["uneven", "at chunks' borders", "one by one"]
)
def test_fla_268_and_494_streaming_carries_the_normaliser(kernel: Kernel, backend: str, pieces: list[int]) -> None:
    """In fla #268 and #494, streaming in pieces differs from one pass: the normaliser's state was not carried."""
    q, k, v = random_qkv(seq_len=sum(pieces), feature_dim=4, head_dim=5)  # few features, hence chunks of 64 tokens
    state = initial_state(kernel, 2, 3, 4, 5, dtype=torch.float64)
    outs = []
    for part in zip(*(x.split(pieces, dim=1) for x in (q, k, v)), strict=True):
        out, state = kernel_attention(*part, kernel, state=state, return_state=True, backend=backend)
        outs.append(out)
    streamed, expected = torch.cat(outs, dim=1), definition(q, k, v, kernel)
    assert_close(with_gradients(streamed, (q, k, v)), with_gradients(expected, (q, k, v)), 1e-10)
    assert relative_rms(state.normalizer, kernel.key_features(k).sum(dim=1)) <= 1e-10


@both_backends
@both_kernels
def test_fla_268_and_494_steps_carry_the_normaliser(kernel: Kernel, backend: str) -> None:
    """In fla #268 and #494, the same when decoding token by token after a prompt."""
    q, k, v = random_qkv(seq_len=80, head_dim=5)
    _, state = kernel_attention(q[:, :70], k[:, :70], v[:, :70], kernel, return_state=True, backend=backend)
    expected = definition(q, k, v, kernel)
    for t in range(70, 80):
        out, state = kernel_attention_step(q[:, t], k[:, t], v[:, t], state, kernel)
        assert relative_rms(out, expected[:, t]) <= 1e-10


@both_backends
@both_kernels
@pytest.mark.parametrize(("seq_len", "num_heads"), [(3, 7), (7, 3), (150, 4), (5, 5)])
def test_fla_594_and_850_normaliser_sums_over_time(kernel: Kernel, backend: str, seq_len: int, num_heads: int) -> None:
    """In fla #594 and #850, the normaliser's cumulative sum ran over heads instead of time.

    Heads of very different sizes, so that nothing of one may enter another's normaliser.
    """
    q, k, v = random_qkv(seq_len=seq_len, num_heads=num_heads, head_dim=5)
    k = (k * 10.0 ** torch.arange(num_heads)[:, None]).detach().requires_grad_()
    out = kernel_attention(q, k, v, kernel, backend=backend)
    torch.testing.assert_close(out[:, 0], v[:, 0])  # the first token sees itself alone, in every head
    expected = definition(q, k, v, kernel)
    for h in range(num_heads):
        assert relative_rms(out[:, :, h], expected[:, :, h]) <= 1e-10
        alone = kernel_attention(q[:, :, h, None], k[:, :, h, None], v[:, :, h, None], kernel, backend=backend)
        assert relative_rms(out[:, :, h, None], alone) <= 1e-10


@both_backends
@both_kernels
@pytest.mark.parametrize("seq_len", range(1, 9), ids="T={}".format)
def test_fla_88_eight_tokens_or_fewer(kernel: Kernel, backend: str, seq_len: int) -> None:
    """In fla #88, sequences of 8 tokens or fewer fail.

    Gradients are compared without the normaliser: with it they are rounding error at T = 1 and nearly so at T = 2.
    """
    leaves = random_qkv(seq_len=seq_len, head_dim=20)
    assert relative_rms(kernel_attention(*leaves, kernel, backend=backend), definition(*leaves, kernel)) <= 1e-10
    out = kernel_attention(*leaves, kernel, normalize=False, backend=backend)
    expected = definition(*leaves, kernel, normalize=False)
    assert_close(with_gradients(out, leaves), with_gradients(expected, leaves), 1e-10)


@pytest.mark.parametrize("seq_len", [1, 8], ids="T={}".format)
def test_fla_88_eight_tokens_or_fewer_compile(seq_len: int) -> None:
    """In fla #88, the same under torch.compile."""
    torch.compiler.reset()
    q, k, v = random_qkv(seq_len=seq_len, head_dim=20)
    compiled = torch.compile(kernel_attention, fullgraph=True, backend="aot_eager")
    assert relative_rms(compiled(q, k, v), definition(q, k, v, REBASED)) <= 1e-10


@both_backends
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("feature_dim", "num_features"), [(16, 153), (5, 21), (1, 3)], ids=["E=153", "E=21", "E=3"])
def test_fla_1241_odd_feature_counts_in_16_bits(
    backend: str, dtype: torch.dtype, feature_dim: int, num_features: int
) -> None:
    """In fla #1241, odd feature counts, such as Based's 153, crash in 16 bits."""
    assert BASED.num_features(feature_dim) == num_features
    leaves = random_qkv(seq_len=200, feature_dim=feature_dim, head_dim=20, dtype=dtype)
    out, state = kernel_attention(*leaves, BASED, return_state=True, backend=backend)
    assert out.dtype == dtype
    assert state.values.shape[2] == num_features
    exact = [x.detach().double().requires_grad_() for x in leaves]
    assert_close(with_gradients(out, leaves), with_gradients(definition(*exact, BASED), exact), RELATIVE_RMS[dtype])


@both_backends
@both_kernels
@pytest.mark.parametrize(("feature_dim", "head_dim"), [(12, 20), (7, 48), (24, 33)], ids=["F=12", "F=7", "F=24"])
def test_fla_836_dq_of_packed_sequences(kernel: Kernel, backend: str, feature_dim: int, head_dim: int) -> None:
    """In fla #836, dq was wrong with several packed sequences and a width that is no power of two."""
    leaves = random_qkv(batch_size=1, seq_len=200, feature_dim=feature_dim, head_dim=head_dim)
    borders = [0, 3, 67, 68, 68, 200]
    out = kernel_attention(*leaves, kernel, cu_seqlens=torch.tensor(borders), backend=backend)
    apart = [definition(*(x[:, a:b] for x in leaves), kernel) for a, b in pairwise(borders) if a < b]
    assert_close(with_gradients(out, leaves), with_gradients(torch.cat(apart, dim=1), leaves), 1e-10)


@both_backends
@both_kernels
@pytest.mark.parametrize("scale", [1.0, 0.3, 2.5, -0.7], ids="scale={}".format)
@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "sums"])
def test_fla_47_a_scale_other_than_1(kernel: Kernel, backend: str, scale: float, normalize: bool) -> None:
    """In fla #47, a scale other than 1 goes wrong. ReBased's normaliser cancels it but for eps, here made large."""
    leaves = random_qkv(seq_len=150, head_dim=5)
    settings = {"scale": scale, "eps": 0.5, "normalize": normalize}
    expected = definition(*leaves, kernel, **settings)
    assert_close(
        with_gradients(kernel_attention(*leaves, kernel, **settings, backend=backend), leaves),
        with_gradients(expected, leaves),
        1e-10,
    )
    q, k, v = leaves
    _, state = kernel_attention(q[:, :-1], k[:, :-1], v[:, :-1], kernel, **settings, return_state=True, backend=backend)
    last, _ = kernel_attention_step(q[:, -1], k[:, -1], v[:, -1], state, kernel, **settings)
    assert relative_rms(last, expected[:, -1]) <= 1e-10
