"""Packages that are asked for only by those who use them: what is not installed is named before any work."""

from importlib.util import find_spec

__all__ = ["require_packages"]


def require_packages(what: str, *packages: str) -> None:
    """ImportError, saying what to install, for the first that ``what`` needs and that is not there."""
    for package in packages:
        if find_spec(package) is None:
            raise ImportError(f"{what} needs {package}: pip install {package}")
