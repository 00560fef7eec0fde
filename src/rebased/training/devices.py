"""Which device trains."""

import contextlib

import torch

__all__ = ["DEVICES", "DEVICE_KINDS", "choose_device", "current", "device_of_worker"]

DEVICE_KINDS = ("auto", "cpu", "cuda")
"""What may be asked for where others say which GPU: a cluster, or the environment of a process."""
DEVICES = (*DEVICE_KINDS, "cuda:<index>")


def choose_device(name: str) -> str:
    """What trains: "auto" is CUDA where there is one. ValueError for what this machine lacks or nobody knows."""
    kind, colon, index = name.partition(":")
    if name not in DEVICE_KINDS and not (kind == "cuda" and index.isdecimal()):
        raise ValueError(f"device={name!r} is unknown; it may be {', '.join(DEVICES)}")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={name!r} was asked for, but torch sees no CUDA device; use 'cpu'")
    if colon and int(index) >= torch.cuda.device_count():
        raise ValueError(f"device={name!r} was asked for, but there are only {torch.cuda.device_count()}")
    return name


def device_of_worker(device: str, worker: int) -> str:
    """The device of one of several workers: "cuda" without an index means all there are, in turn."""
    return f"cuda:{worker % torch.cuda.device_count()}" if device == "cuda" else device


def current(device: str) -> contextlib.AbstractContextManager[object]:
    """Within, it is torch's current one: Triton launches kernels there, wherever the tensors are."""
    return torch.cuda.device(device) if device.startswith("cuda") else contextlib.nullcontext()
