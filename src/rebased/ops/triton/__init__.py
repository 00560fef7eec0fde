"""Triton kernels of the operators, and what launches them."""
