"""Part of the runs: `rebased paper run figure1 --only stack=mamba,rwkv --only seq_len=128`."""

from collections.abc import Sequence
from dataclasses import fields

from rebased.training.recall import RecallConfig

__all__ = ["select"]


def select(configs: Sequence[RecallConfig], only: Sequence[str]) -> list[RecallConfig]:
    """Those that have one of the given values in each of the given fields; all of them if none is given.

    ValueError, listing what there is, for a field or a value that no run has.
    """
    if only and not configs:
        raise ValueError(f"only={only[0]!r} chooses among runs, and there are none")
    chosen = list(configs)
    for text in only:
        name, equals, listed = text.partition("=")
        there = _values(configs, name)
        known = ", ".join(map(str, there))
        if not equals:
            raise ValueError(f"only={text!r} must be name=value[,value…]; {name} may be {known}")
        wanted = []
        for typed in listed.split(","):
            found = [value for value in there if _is(value, typed)]
            if not found:
                raise ValueError(f"only={text!r}: no run has {name}={typed}; there are {known}")
            wanted += found
        chosen = [config for config in chosen if getattr(config, name) in wanted]
    if only and not chosen:
        raise ValueError(f"only={', '.join(only)!r}: no run has all of these")
    return chosen


def _values(configs: Sequence[RecallConfig], name: str) -> list[object]:
    """What the runs have in a field that is one number or word, each once."""
    simple = [field.name for field in fields(RecallConfig) if not field.name.endswith("_options")]
    if name not in simple:
        raise ValueError(f"only={name!r} must be name=value[,value…], with a name of {', '.join(simple)}")
    return list(dict.fromkeys(getattr(config, name) for config in configs))


def _is(value: object, typed: str) -> bool:
    """1e-3 and 0.001 are one number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(typed) == value
        except ValueError:
            return False
    return str(value) == typed
