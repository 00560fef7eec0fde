"""Where and with what a result was made: the record every result file carries."""

import datetime
import functools
import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from rebased import __version__

__all__ = ["Environment", "card_digest", "describe_environment", "source_digest", "usable_cpus"]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine and the software. Holds no path, host or user name."""

    date: str
    """When, in ISO 8601 with the offset from UTC."""
    device: str
    """What computed: "cpu" or "cuda"."""
    device_name: str
    """The processor's or accelerator's model."""
    cpu_count: int
    """Processors this process may use."""
    threads: int
    """Threads torch runs one CPU operator on."""
    float32_matmul_precision: str
    """torch's setting; anything but "highest" lets float32 products be rounded to TF32 or less."""
    platform: str
    """Operating system, kernel and architecture."""
    python: str
    torch: str
    numpy: str | None
    triton: str | None
    """None where it is not installed."""
    fla: str | None
    """flash-linear-attention, the peer; None where it is not installed."""
    cuda: str | None
    """The CUDA version torch was built with; None for CPU builds."""
    rebased: str
    commit: str | None
    """The checkout the package was imported from, "-dirty" if it had changes; None outside one."""
    source: str | None = None
    """First 12 hex digits of a hash of the package's modules: equal code, equal digits."""


def card_digest(device: torch.device) -> str:
    """A short hash that tells devices apart: of a GPU's own identifier, or of the host's name for a CPU.

    A name that can be guessed can be recognised by it.
    """
    name = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else platform.node()
    return hashlib.sha256(name.encode()).hexdigest()[:8]


@functools.cache
def source_digest(package: Path = Path(__file__).parent) -> str:
    """First 12 hex digits of a hash of the names and contents of the package's modules: equal code, equal digits."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n".encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()[:12]


def describe_environment(device: torch.device) -> Environment:
    """The record of this process, now, for work done on ``device``."""
    return Environment(
        date=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else _processor_name(),
        cpu_count=usable_cpus(),
        threads=torch.get_num_threads(),
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        platform=platform.platform(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        numpy=_package_version("numpy"),
        triton=_package_version("triton"),
        fla=_package_version("flash-linear-attention"),
        cuda=torch.version.cuda,
        rebased=__version__,
        commit=_commit(),
        source=source_digest(),
    )


def _package_version(name: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def usable_cpus() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor_name() -> str:
    # platform.processor() is empty or only the architecture on Linux.
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    # A package installed into some other project's environment lies inside that project's checkout: the answer counts
    # only if git tracks this very file.
    here = Path(__file__)
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
