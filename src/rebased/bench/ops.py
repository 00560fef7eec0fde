"""`rebased bench ops`: the operator's backends beside softmax attention and the peers, over sequence length."""

import dataclasses
import logging
from collections.abc import Callable

from rebased.bench.accuracy import Accuracy
from rebased.bench.cells import failure, measure_candidate
from rebased.bench.config import OpsBenchConfig
from rebased.bench.growth import growth_exponent
from rebased.bench.limit import Limit, compute_limit
from rebased.bench.rates import measure_rates
from rebased.bench.results import CandidateGrowth, Measurement, OpsBenchResult
from rebased.bench.verify import WrongBackendError, check_backend

__all__ = ["run_ops_bench"]

_logger = logging.getLogger(__name__)


def run_ops_bench(config: OpsBenchConfig, *, progress: Callable[[str], None] = _logger.info) -> OpsBenchResult:
    """Check every backend, then measure every candidate at every length.

    ``progress`` is told in words what comes next. Raises ValueError if ``config.device`` is not on this machine, and
    WrongBackendError, before anything is timed, if a backend is wrong. A candidate that is too long for its limit in
    ``config``, or that fails, is recorded as skipped with the reason.
    """
    with config.measuring() as circumstances:
        errors: dict[str, float] = {}
        refused: dict[str, str] = {}
        for backend in config.backends:
            progress(f"checking {backend} against the float64 reference")
            try:
                errors[backend] = _check(backend, config)
            except WrongBackendError:
                raise
            except Exception as error:  # what it cannot do at all, it cannot do wrong
                refused[backend] = failure(error)
        progress("measuring what the device can do")
        rates = measure_rates(config.torch_device, config.torch_dtype)
        limits = [
            compute_limit(
                length,
                passes,
                rates,
                batch_size=config.batch_at(length),
                num_heads=config.num_heads,
                feature_dim=config.feature_dim,
                head_dim=config.head_dim,
                element_size=config.torch_dtype.itemsize,
            )
            for length in config.lengths
            for passes in config.passes
        ]
        measurements: list[Measurement] = []
        accuracy: list[Accuracy] = []
        for length in config.lengths:
            for candidate in config.candidates:
                progress(f"timing {candidate} at length {length}")
                cells, errors_here = measure_candidate(candidate, length, config, refused=refused.get(candidate))
                measurements += cells
                accuracy += [errors_here] if errors_here else []
        return OpsBenchResult(
            **circumstances(),
            errors=errors,
            rates=rates,
            limits=tuple(limits),
            measurements=_with_ratios(measurements, limits),
            growth=tuple(
                _growth(candidate, passes, measurements) for candidate in config.candidates for passes in config.passes
            ),
            accuracy=tuple(accuracy),
        )


def _check(backend: str, config: OpsBenchConfig) -> float:
    return check_backend(
        backend,
        device=config.torch_device,
        dtype=config.torch_dtype,
        feature_dim=config.feature_dim,
        head_dim=config.head_dim,
        backward="both" in config.passes,
        seed=config.seed,
    )


def _with_ratios(measurements: list[Measurement], limits: list[Limit]) -> tuple[Measurement, ...]:
    """The measurements with their ratios to SDPA and to the limit at the same length, for the same passes."""
    sdpa = {(each.length, each.passes): each.timing for each in measurements if each.candidate == "sdpa"}
    least = {(limit.length, limit.passes): limit.seconds for limit in limits}
    done = []
    for each in measurements:
        key = (each.length, each.passes)
        rival = sdpa[key]
        if each.timing and rival:
            each = dataclasses.replace(each, speedup_over_sdpa=rival.median_seconds / each.timing.median_seconds)
        if each.timing and each.candidate != "sdpa":
            each = dataclasses.replace(each, limit_fraction=least[key] / each.timing.median_seconds)
        done.append(each)
    return tuple(done)


def _growth(candidate: str, passes: str, measurements: list[Measurement]) -> CandidateGrowth:
    mine = [each for each in measurements if (each.candidate, each.passes) == (candidate, passes)]
    times = [(each.length, each.timing.median_seconds) for each in mine if each.timing]
    peaks = [(each.length, float(each.peak_bytes)) for each in mine if each.peak_bytes]
    return CandidateGrowth(
        candidate=candidate, passes=passes, time_exponent=_exponent(times), memory_exponent=_exponent(peaks)
    )


def _exponent(points: list[tuple[int, float]]) -> float | None:
    return growth_exponent([length for length, _ in points], [cost for _, cost in points])
