"""A small case of each kernel, to be run under compute-sanitizer: ``compute-sanitizer python tests/sanitize.py``."""

import torch

from rebased.kernels import BASED, REBASED
from rebased.ops import initial_state, kernel_attention, kernel_attention_step, norm_affine


def main() -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def randn(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device="cuda").to(dtype).requires_grad_()

    at = torch.randint(0, 400, (1, 50), generator=generator, device="cuda")
    borders = torch.tensor([0, 3, 3, 300, 400], device="cuda")
    key_mask = torch.rand(1, 400, generator=generator, device="cuda") < 0.5
    for dtype, kernel, (feature_dim, head_dim), arguments in (
        (torch.bfloat16, REBASED, (16, 64), {}),
        (torch.bfloat16, REBASED, (16, 12), {"at": at, "cu_seqlens": borders}),
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
    x, weight, bias = randn(3, 50, 24, dtype=torch.bfloat16), *(randn(24, dtype=torch.float32) for _ in range(2))
    torch.autograd.grad(norm_affine(x, weight, bias, backend="triton").float().sum(), (x, weight, bias))
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
