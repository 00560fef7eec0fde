"""What the statistics ask of their input: finite numbers, enough of them, and options in range."""

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Float, Int

from rebased.checks import check_integer

__all__ = [
    "broadcasts_to",
    "check_fraction",
    "check_seed",
    "finite_array",
    "finite_vector",
    "group_codes",
    "weights_array",
]


def finite_array(name: str, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """``values`` in float64; ValueError unless every one is a finite number."""
    array = np.asarray(values, dtype=np.float64)
    wrong = array[~np.isfinite(array)]
    if wrong.size:
        raise ValueError(f"{name} has {wrong.size} values that are not finite, such as {wrong[0]}; all must be numbers")
    return array


def finite_vector(name: str, values: Float[np.ndarray, "n"], *, at_least: int = 1) -> Float[np.ndarray, "n"]:
    """``values`` in float64; ValueError unless they are finite, along one axis, and ``at_least`` so many."""
    array = finite_array(name, values)
    if array.ndim != 1 or array.size < at_least:
        raise ValueError(f"{name} has shape {array.shape}; it must have one axis with at least {at_least} values")
    return array


def weights_array(name: str, values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """``values`` in float64; ValueError unless they are finite and none is negative."""
    array = finite_array(name, values)
    if array.size and array.min() < 0:
        raise ValueError(f"{name} has the negative value {array.min()}; all must be at least 0")
    return array


def group_codes(name: str, labels: Sequence[Hashable], num_values: int) -> Int[np.ndarray, "n"]:
    """Equal labels as equal numbers, counted from 0 in order of appearance; ValueError unless each value has one."""
    if len(labels) != num_values:
        raise ValueError(f"{name} has {len(labels)} labels for {num_values} values; it must have one for each")
    codes: dict[Hashable, int] = {}
    return np.array([codes.setdefault(label, len(codes)) for label in labels], dtype=np.int64)


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of ``shape`` can stand for one of ``target``."""
    aligned = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in aligned)


def check_fraction(name: str, value: float) -> None:
    """ValueError unless strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name}={value} must be between 0 and 1, exclusive")


def check_seed(seed: int) -> None:
    """TypeError or ValueError unless a non-negative integer: None would draw differently each time."""
    check_integer("seed", seed, least=0)
