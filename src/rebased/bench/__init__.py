"""Timings against the peers, side by side in one run."""

from rebased.bench.accuracy import Accuracy, measure_accuracy
from rebased.bench.config import OpsBenchConfig
from rebased.bench.decode import run_decode_bench
from rebased.bench.decode_results import DecodeBenchConfig, DecodeBenchResult, DecodeMeasurement
from rebased.bench.growth import growth_exponent
from rebased.bench.limit import Limit, compute_limit
from rebased.bench.memory import peak_memory
from rebased.bench.ops import run_ops_bench
from rebased.bench.rates import Rates, measure_rates
from rebased.bench.results import CandidateGrowth, Measurement, OpsBenchResult
from rebased.bench.timing import Timing, time_call
from rebased.bench.verify import WrongBackendError, check_backend
from rebased.environment import Environment, describe_environment

__all__ = [
    "Accuracy",
    "CandidateGrowth",
    "DecodeBenchConfig",
    "DecodeBenchResult",
    "DecodeMeasurement",
    "Environment",
    "Limit",
    "Measurement",
    "OpsBenchConfig",
    "OpsBenchResult",
    "Rates",
    "Timing",
    "WrongBackendError",
    "check_backend",
    "compute_limit",
    "describe_environment",
    "growth_exponent",
    "measure_accuracy",
    "measure_rates",
    "peak_memory",
    "run_decode_bench",
    "run_ops_bench",
    "time_call",
]
