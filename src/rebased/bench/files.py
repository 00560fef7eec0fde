"""Result files: small JSON that appears whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["write_json"]


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write ``data`` to ``path`` by way of a file beside it that is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n")
    os.replace(partial, path)
