"""A small case of each kernel, to be run under compute-sanitizer: ``compute-sanitizer python tests/sanitize.py``."""

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


def main() -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda").to(dtype).requires_grad_()

    at = torch.randint(0, 400, (1, 50), generator=generator, device="cuda")
    borders = torch.tensor([0, 3, 3, 300, 400], device="cuda")
    key_mask = torch.rand(1, 400, generator=generator, device="cuda") < 0.5
    for dtype, kernel, (feature_dim, head_dim), arguments in (
        (torch.bfloat16, REBASED, (16, 64), {}),
        (torch.bfloat16, REBASED, (16, 64), {"cu_seqlens": borders}),
        (torch.bfloat16, REBASED, (16, 12), {"at": at, "cu_seqlens": borders}),
        (torch.bfloat16, REBASED, (16, 4), {"at": at}),
        (torch.float32, BASED, (5, 20), {"key_mask": key_mask}),
        (torch.float16, BASED, (16, 12), {"causal": False}),
    ):
        q = randn(1, 400, 4, feature_dim, dtype=dtype)
        k, v = randn(1, 400, 2, feature_dim, dtype=dtype), randn(1, 400, 2, head_dim, dtype=dtype)
        queries = q[:, :50] if "at" in arguments else q
        sequences = 4 if "cu_seqlens" in arguments else 1
        state = initial_state(kernel, sequences, 2, feature_dim, head_dim, device="cuda")
        out, new = kernel_attention(
            queries, k, v, kernel, state=state, return_state=True, backend="triton", **arguments
        )
        torch.autograd.grad(out.float().sum() + new.values.sum(), (q, k, v))
        with torch.no_grad():
            state = initial_state(kernel, 1, 2, feature_dim, head_dim, device="cuda")
            kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state, kernel, inplace=True, backend="triton")
    for kernel, mask in ((REBASED, None), (BASED, key_mask)):  # few queries, all gradients in one walk
        q = randn(1, 50, 2, 16, dtype=torch.bfloat16)
        k, v = randn(1, 400, 2, 16, dtype=torch.bfloat16), randn(1, 400, 2, 4, dtype=torch.bfloat16)
        out = kernel_attention(q, k, v, kernel, at=at, key_mask=mask, backend="triton")
        torch.autograd.grad(out.float().sum(), (q, k, v))
    x, weight, bias = randn(3, 50, 24, dtype=torch.bfloat16), *(randn(24, dtype=torch.float32) for _ in range(2))
    torch.autograd.grad(norm_affine(x, weight, bias, backend="triton").float().sum(), (x, weight, bias))
    x = randn(2, 150, 70, dtype=torch.bfloat16)
    weight, bias = randn(70, 4, dtype=torch.float32), randn(70, dtype=torch.float32)
    torch.autograd.grad(conv_silu(x, weight, bias, backend="triton").float().sum(), (x, weight, bias))
    x, dt = randn(2, 70, 12, dtype=torch.bfloat16), randn(2, 70, 12, dtype=torch.bfloat16)
    A, b, c = -torch.rand(12, 5, device="cuda"), *(randn(2, 70, 5, dtype=torch.bfloat16) for _ in range(2))
    y, h = selective_scan(x, dt.abs(), A.requires_grad_(), b, c, return_state=True, backend="triton")
    torch.autograd.grad(y.float().sum() + h.sum(), (x, dt, A, b, c))
    k, v = randn(2, 150, 12, dtype=torch.bfloat16), randn(2, 150, 12, dtype=torch.bfloat16)
    decay, bonus = randn(12, dtype=torch.float32), randn(12, dtype=torch.float32)
    mask = torch.rand(2, 150, generator=generator, device="cuda") < 0.5
    y, sums = wkv(k, v, decay.abs(), bonus, key_mask=mask, return_state=True, backend="triton")
    torch.autograd.grad(y.float().sum() + sums.numerator.sum(), (k, v, decay, bonus))
    x, weight = randn(70, 24, dtype=torch.bfloat16), randn(300, 24, dtype=torch.bfloat16)
    labels = torch.randint(0, 300, (70,), generator=generator, device="cuda")
    torch.autograd.grad(linear_cross_entropy(x, weight, labels, backend="triton").sum(), (x, weight))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
