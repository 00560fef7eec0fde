"""Time each Triton kernel with many tile sizes: what the numbers in `rebased.ops.triton.tuning` were chosen from.

    python benchmarks/tune.py --num-heads 64 --head-dim 12

Compiling takes seconds a variant. `--share 0/8` … `--share 7/8` in eight processes compile a share each (their times
are worthless); a last run without it finds everything in Triton's cache.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import replace

import torch

from rebased.ops import kernel_attention
from rebased.ops.triton import plan, tuning
from rebased.ops.triton.tuning import Tile, Tuning

KERNELS = {
    "states": "states_kernel",
    "forward": "forward_kernel",
    "query_grads": "query_grads_kernel",
    "key_grads": "key_grads_kernel",
}


def variants() -> list[Tile]:
    """Combinations that compiled without spilling at D = 12 or 64 for at least one kernel."""
    tiles = []
    for rows, columns, num_i, num_warps in (
        *itertools.product((64,), (32, 64), (8, 16), (4,)),
        *itertools.product((32, 64), (32,), (8, 16), (1, 2)),
        (16, 16, 16, 1),
        (64, 64, 8, 2),
        (128, 64, 8, 4),
    ):
        tiles.extend(Tile(rows, columns, num_i, num_warps, num_stages) for num_stages in (1, 2, 3))
    return tiles


def with_tiles(chunk: int, tile: Tile) -> Callable[[torch.dtype, int, int], Tuning]:
    def choose(dtype: torch.dtype, feature_dim: int, head_dim: int) -> Tuning:
        base = tuning.tuning(dtype, feature_dim, head_dim)
        return replace(base, chunk=chunk, states=tile, forward=tile, query_grads=tile, key_grads=tile)

    return choose


def kernel_times(step: Callable[[], None], repetitions: int = 6) -> dict[str, float]:
    """Milliseconds of each kernel in one call."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(repetitions):
            step()
        torch.cuda.synchronize()
    events = {event.key: event.self_device_time_total / repetitions / 1e3 for event in profile.key_averages()}
    return {name: events[kernel] for name, kernel in KERNELS.items() if kernel in events}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-heads", type=int, default=12)
    parser.add_argument("--feature-dim", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--chunks", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--share", default="0/1")
    options = parser.parse_args()
    share, shares = map(int, options.share.split("/"))
    shape = (options.tokens // options.length, options.length, options.num_heads)
    leaves = [
        torch.randn(*shape, width, device="cuda").to(getattr(torch, options.dtype)).requires_grad_()
        for width in (options.feature_dim, options.feature_dim, options.head_dim)
    ]
    grad = torch.randn_like(leaves[2])

    def step() -> None:
        torch.autograd.grad(kernel_attention(*leaves, backend="triton"), leaves, grad)

    found: dict[str, list[tuple[float, int, Tile]]] = {name: [] for name in KERNELS}
    for index, (chunk, tile) in enumerate(itertools.product(options.chunks, variants())):
        if index % shares != share or tile.num_i > max(16, options.feature_dim):
            continue
        plan.tuning = with_tiles(chunk, tile)
        plan._make_plan.cache_clear()
        try:
            times = kernel_times(step)
        except Exception as error:  # a variant that does not compile is a result too
            print(f"# chunk {chunk}, {tile}: {type(error).__name__}", flush=True)
            continue
        for name, time in times.items():
            found[name].append((time, chunk, tile))
    for name, results in found.items():
        for chunk in options.chunks:
            best = sorted(((time, tile) for time, c, tile in results if c == chunk), key=lambda pair: pair[0])
            for time, tile in best[:6]:
                sizes = f"rows {tile.rows} columns {tile.columns} num_i {tile.num_i}"
                print(
                    f"{name:12} chunk {chunk}: {time:.3f} ms  {sizes} warps {tile.num_warps} stages {tile.num_stages}"
                )


if __name__ == "__main__":
    main()
