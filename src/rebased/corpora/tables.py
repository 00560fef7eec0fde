"""Rows of Parquet files, and of datasets on the Hugging Face Hub."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from rebased.corpora.pieces import Piece
from rebased.corpora.records import Reading

__all__ = ["read_hub_dataset", "read_parquet"]

_ROWS = 64
"""Rows of a Parquet file held at once."""


def read_parquet(path: Path, set_name: str, reading: Reading) -> Iterator[Piece]:
    """Row after row, without the columns that are neither text nor set."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("reading Parquet needs pyarrow: pip install pyarrow") from error
    wanted = {field.partition(".")[0] for field in (reading.text_field, reading.set_field)}
    wanted |= {reading.text_field, reading.set_field}
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in file.schema_arrow.names if name in wanted]
            if not columns:
                have = ", ".join(file.schema_arrow.names)
                raise ValueError(f"{path}: text_field={reading.text_field!r} is not there; there are {have}")
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield from reading.document(row, set_name, f"{path}, row {number:,}")
    except pyarrow.ArrowException as error:
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{path} is not Parquet: {error}") from error


def read_hub_dataset(name: str, config: str | None, split: str, set_name: str, reading: Reading) -> Iterator[Piece]:
    """Row after row as they arrive; nothing is kept on disk."""
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("reading datasets by name needs datasets: pip install datasets") from error
    try:
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
    except (OSError, ValueError) as error:
        raise ValueError(f"the dataset hf:{name} cannot be loaded: {error}") from error
    for number, row in enumerate(_as_long_as_it_lasts(rows, name), 1):
        yield from reading.document(row, set_name, f"hf:{name}, row {number:,}")


def _as_long_as_it_lasts(rows: Iterable[object], name: str) -> Iterator[object]:
    try:
        yield from rows
    except Exception as error:  # of whatever library has fetched and parsed it
        raise OSError(f"the dataset hf:{name} broke off ({error!r}); the same command goes on") from error
