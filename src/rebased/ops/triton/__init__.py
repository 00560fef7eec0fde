"""Kernel attention in Triton: see `rebased.ops.triton.driver`."""
