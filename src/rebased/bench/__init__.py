"""Timings against the peers, side by side in one run."""

from rebased.bench.config import OpsBenchConfig
from rebased.bench.environment import Environment, describe_environment
from rebased.bench.growth import growth_exponent
from rebased.bench.memory import peak_memory
from rebased.bench.ops import run_ops_bench
from rebased.bench.results import CandidateGrowth, Measurement, OpsBenchResult
from rebased.bench.timing import Timing, time_call
from rebased.bench.verify import WrongBackendError, check_backend

__all__ = [
    "CandidateGrowth",
    "Environment",
    "Measurement",
    "OpsBenchConfig",
    "OpsBenchResult",
    "Timing",
    "WrongBackendError",
    "check_backend",
    "describe_environment",
    "growth_exponent",
    "peak_memory",
    "run_ops_bench",
    "time_call",
]
