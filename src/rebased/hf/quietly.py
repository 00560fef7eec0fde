"""Transformers without its bars: what it shows of reading and writing a model stands between a command's own lines."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging

__all__ = ["without_progress_bars"]


@contextmanager
def without_progress_bars() -> Iterator[None]:
    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_shown:
            logging.enable_progress_bar()
