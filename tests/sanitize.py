"""Every kernel, to be run under compute-sanitizer: ``compute-sanitizer python tests/sanitize.py``."""

import torch

from every_kernel import run_every_kernel

if __name__ == "__main__":
    run_every_kernel("cuda")
    torch.cuda.synchronize()
