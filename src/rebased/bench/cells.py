"""One candidate at one length: its error, its time and its memory, or the reason why there are none."""

import logging

import torch

from rebased.bench.accuracy import Accuracy, measure_accuracy
from rebased.bench.candidates import Attend, Inputs, build_attend, build_call, build_inputs
from rebased.bench.config import OpsBenchConfig
from rebased.bench.memory import peak_memory
from rebased.bench.peers import PeerUnavailableError
from rebased.bench.results import Measurement
from rebased.bench.timing import time_call, time_launch
from rebased.bench.verify import WrongBackendError, check_errors
from rebased.replay import Replay

__all__ = ["failure", "measure_candidate"]

_logger = logging.getLogger(__name__)


def measure_candidate(
    candidate: str, length: int, config: OpsBenchConfig, *, refused: str | None = None
) -> tuple[list[Measurement], Accuracy | None]:
    """A measurement for each of ``config.passes``, and with ``config.accuracy`` the errors.

    Whatever a candidate raises becomes the reason of an empty cell: out of memory, a size it does not take, a package
    that is not here. So does ``refused``, and that one of ours is wrong at this length.
    """
    accuracy = None
    reason = refused or config.skip_reason(candidate, length)
    if reason is None:
        try:
            attend, inputs = build_attend(candidate, config), build_inputs(candidate, length, config)
        except Exception as error:
            reason = failure(error)
    if reason is None and config.accuracy:
        accuracy, reason = _accuracy(candidate, attend, inputs, config)
    if reason is not None:
        _free_memory()
        return [_skipped(candidate, length, passes, reason) for passes in config.passes], accuracy
    return [_measure(candidate, attend, inputs, passes, config) for passes in config.passes], accuracy


def failure(error: Exception) -> str:
    """An exception as a reason: one line, which ends up in a table and in JSON."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of device memory"
    text = (str(error).strip() or "no message").splitlines()[0]
    if isinstance(error, PeerUnavailableError | WrongBackendError):
        return text
    return f"{type(error).__name__}: {text}"[:300]


def _accuracy(
    candidate: str, attend: Attend, inputs: Inputs, config: OpsBenchConfig
) -> tuple[Accuracy | None, str | None]:
    """The errors, and why the candidate must not be timed; the right to time others does not depend on their errors."""
    accuracy = None
    try:
        accuracy, errors = measure_accuracy(candidate, attend, inputs, backward="both" in config.passes)
        if candidate in config.backends:
            check_errors(f"backend {candidate!r} at length {accuracy.length}", errors, config.torch_dtype)
    except Exception as error:
        if candidate in config.backends:
            return accuracy, failure(error)
        _logger.warning("no errors of %s at length %d: %s", candidate, inputs.q.shape[1], failure(error))
    return accuracy, None


def _measure(candidate: str, attend: Attend, inputs: Inputs, passes: str, config: OpsBenchConfig) -> Measurement:
    length = inputs.q.shape[1]
    try:
        call = build_call(attend, inputs, passes)
        call()  # warm-up for both: what a library allocates once and keeps is not this call's memory
        peak_bytes = peak_memory(call, device=config.torch_device)
        launch_seconds = time_launch(call) if config.device == "cuda" else None
        timing = time_call(
            Replay(call, config.torch_device) if config.graphs else call,
            device=config.torch_device,
            warmup=0,
            min_repetitions=config.min_repetitions,
            min_seconds=config.min_seconds,
        )
    except Exception as error:
        reason = failure(error)
    else:
        return Measurement(
            candidate=candidate,
            length=length,
            passes=passes,
            timing=timing,
            launch_seconds=launch_seconds,
            peak_bytes=peak_bytes,
        )
    _free_memory()  # here and not above: while it is handled, an exception holds on to the tensors of its frames
    return _skipped(candidate, length, passes, reason)


def _skipped(candidate: str, length: int, passes: str, reason: str) -> Measurement:
    return Measurement(candidate=candidate, length=length, passes=passes, skipped=reason)


def _free_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
