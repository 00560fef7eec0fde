"""A small case of each Triton kernel, in the dtypes that GPUs compute in, for checks of all kernels together."""

import torch

from rebased.kernels import BASED, REBASED
from rebased.ops import (
    initial_state,
    kernel_attention,
    kernel_attention_step,
    linear_cross_entropy,
    norm_affine,
    selective_scan,
    wkv,
)
from rebased.ops.conv_silu import conv_silu


def run_every_kernel(device: str) -> None:
    """Forward and backward; of the results nothing is looked at."""
    cases = _Cases(device)
    cases.kernel_attention()
    cases.few_queries()
    cases.norm_affine()
    cases.conv_silu()
    cases.selective_scan()
    cases.wkv()
    cases.linear_cross_entropy()


class _Cases:
    def __init__(self, device: str) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(0)
        self.at = torch.randint(0, 400, (1, 50), generator=self.generator, device=device)
        self.key_mask = self.coins(1, 400)

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype).requires_grad_()

    def coins(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device) < 0.5

    def kernel_attention(self) -> None:
        borders = torch.tensor([0, 3, 3, 300, 400], device=self.device)
        for dtype, kernel, (feature_dim, head_dim), arguments in (
            (torch.bfloat16, REBASED, (16, 64), {}),
            (torch.bfloat16, REBASED, (16, 64), {"cu_seqlens": borders}),
            (torch.bfloat16, REBASED, (16, 12), {"at": self.at, "cu_seqlens": borders}),
            (torch.bfloat16, REBASED, (16, 4), {"at": self.at}),
            (torch.float32, BASED, (5, 20), {"key_mask": self.key_mask}),
            (torch.float16, BASED, (16, 12), {"causal": False}),
        ):
            q = self.randn(1, 400, 4, feature_dim, dtype=dtype)
            k, v = self.randn(1, 400, 2, feature_dim, dtype=dtype), self.randn(1, 400, 2, head_dim, dtype=dtype)
            queries = q[:, :50] if "at" in arguments else q
            sequences = 4 if "cu_seqlens" in arguments else 1
            state = initial_state(kernel, sequences, 2, feature_dim, head_dim, device=self.device)
            out, new = kernel_attention(
                queries, k, v, kernel, state=state, return_state=True, backend="triton", **arguments
            )
            torch.autograd.grad(out.float().sum() + new.values.sum(), (q, k, v))
            with torch.no_grad():
                state = initial_state(kernel, 1, 2, feature_dim, head_dim, device=self.device)
                kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state, kernel, inplace=True, backend="triton")

    def few_queries(self) -> None:
        """All gradients in one walk over the keys."""
        for kernel, mask in ((REBASED, None), (BASED, self.key_mask)):
            q, k, v = self.randn(1, 50, 2, 16), self.randn(1, 400, 2, 16), self.randn(1, 400, 2, 4)
            out = kernel_attention(q, k, v, kernel, at=self.at, key_mask=mask, backend="triton")
            torch.autograd.grad(out.float().sum(), (q, k, v))

    def norm_affine(self) -> None:
        x, weight, bias = self.randn(3, 50, 24), *(self.randn(24, dtype=torch.float32) for _ in range(2))
        torch.autograd.grad(norm_affine(x, weight, bias, backend="triton").float().sum(), (x, weight, bias))

    def conv_silu(self) -> None:
        x = self.randn(2, 150, 70)
        weight, bias = self.randn(70, 4, dtype=torch.float32), self.randn(70, dtype=torch.float32)
        torch.autograd.grad(conv_silu(x, weight, bias, backend="triton").float().sum(), (x, weight, bias))

    def selective_scan(self) -> None:
        """Few programs, and as many as in training, where dt is float32."""
        for sizes, dt_dtype in (((2, 70, 12, 5), torch.bfloat16), ((1024, 8, 64, 16), torch.float32)):
            B, T, M, N = sizes
            x, dt = self.randn(B, T, M), self.randn(B, T, M, dtype=dt_dtype)
            A, b, c = self.randn(M, N, dtype=torch.float32), self.randn(B, T, N), self.randn(B, T, N)
            y, h = selective_scan(x, dt.abs(), -A.abs(), b, c, return_state=True, backend="triton")
            torch.autograd.grad(y.float().sum() + h.sum(), (x, dt, A, b, c))

    def wkv(self) -> None:
        k, v = self.randn(2, 150, 12), self.randn(2, 150, 12)
        decay, bonus = self.randn(12, dtype=torch.float32), self.randn(12, dtype=torch.float32)
        mask = self.coins(2, 150)
        y, sums = wkv(k, v, decay.abs(), bonus, key_mask=mask, return_state=True, backend="triton")
        torch.autograd.grad(y.float().sum() + sums.numerator.sum(), (k, v, decay, bonus))

    def linear_cross_entropy(self) -> None:
        """Of narrow rows, and of wide ones."""
        labels = torch.randint(0, 300, (70,), generator=self.generator, device=self.device)
        for width in (24, 520):
            x, weight = self.randn(70, width), self.randn(300, width)
            torch.autograd.grad(linear_cross_entropy(x, weight, labels, backend="triton").sum(), (x, weight))
