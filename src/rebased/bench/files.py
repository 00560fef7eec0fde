"""Result files: small JSON that appears whole or not at all, and is read back strictly."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, get_args

from rebased.bench.timing import Timing
from rebased.environment import Environment
from rebased.files import write_json

__all__ = ["BenchResult", "Result", "read_record"]

Record = TypeVar("Record")
Config = TypeVar("Config")
Measured = TypeVar("Measured")


class Result:
    """Mixed into dataclasses of what a bench found."""

    def to_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and numbers, ready for ``json.dump``."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), allow_nan=False))  # type: ignore[call-overload]
        return plain

    def write(self, path: Path) -> None:
        """Write the JSON to ``path``, whole or not at all; its folder is made if it is not there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, self.to_json())


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchResult(Result, Generic[Config, Measured]):
    """Everything one run found, with what was asked and where it ran: ``class Mine(BenchResult[Config, Measured])``.

    What is measured has a ``timing``.
    """

    config: Config
    environment: Environment
    other_cpus: float | None
    """Processors that other processes kept busy on average during the run; None where the system does not say."""
    measurements: tuple[Measured, ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The result that `to_json` turned into ``data``; ValueError for a name too many or too few anywhere in it."""
        config, measured = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]  # the kinds it is made of
        common: dict[str, Any] = {
            "config": read_record(config, data["config"]),
            "environment": _read_environment(data["environment"]),
            "measurements": [_read_timed(measured, entry) for entry in data["measurements"]],
        }
        return read_record(cls, data | common | cls._read_parts(data))

    @classmethod
    def _read_parts(cls, data: dict[str, Any]) -> dict[str, Any]:
        """What else in it is no plain value."""
        return {}


def read_record(kind: type[Record], data: dict[str, Any]) -> Record:
    """A dataclass of ``kind`` from its fields, lists as tuples; ValueError unless ``data`` names just these.

    A field that has a default must be there too: what a file does not say was not known when it was written.
    """
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if fields != data.keys():
        absent, unknown = sorted(fields - data.keys()), sorted(data.keys() - fields)
        raise ValueError(f"not a record of {kind.__name__}: it lacks {absent} and has the unknown {unknown}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


def _read_environment(data: dict[str, Any]) -> Environment:
    """Files of before there was a digest of the source have none."""
    return read_record(Environment, {"source": None} | data)


def _read_timed(kind: type[Record], data: dict[str, Any]) -> Record:
    """Something that was timed, or skipped."""
    timing = None if data["timing"] is None else read_record(Timing, data["timing"])
    return read_record(kind, data | {"timing": timing})
