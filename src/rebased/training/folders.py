"""Where a sweep keeps what: its plan, its runs, and what belongs to runs that train together."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from rebased.runs import Run, check_vacant, differing_fields, is_finished, read_run, run_name
from rebased.training.recall import RecallConfig

__all__ = ["GroupFolder", "SweepFolder", "model_of", "name_of"]

_LONGEST = 80


def model_of(config: RecallConfig) -> str:
    """What names begin with: the stack, or the mixers of a model that is none. Fit for a directory, so not too long."""
    if "layers" not in config.model_options:
        return config.stack
    mixers = "+".join(dict.fromkeys(layer.mixer for layer in config.model().layers))
    return _fit(mixers)


def _fit(text: str) -> str:
    """For a directory's name; what it loses is in the hash."""
    return re.sub(r"[^\w+.-]", "_", text)[:_LONGEST]


def name_of(config: RecallConfig) -> str:
    """Of the run and its directory, the same in every sweep."""
    options = "".join(f"-{name.removeprefix('num_')}{value}" for name, value in sorted(config.task_options.items()))
    rate, seed = f"lr{config.learning_rate:g}", f"s{config.seed}"
    sizes = f"d{config.d_model}-L{config.seq_len}{_fit(options)}"
    return run_name(config.identity(), f"{model_of(config)}-{sizes}-{rate}-{seed}")


@dataclass(frozen=True)
class GroupFolder:
    """What is needed while a group trains, and the log of how that went."""

    path: Path

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def log(self) -> Path:
        return self.path / "log.jsonl"

    @property
    def error(self) -> Path:
        """The traceback of the last try, if that failed."""
        return self.path / "error.txt"

    @property
    def lock(self) -> Path:
        return self.path / "lock"


@dataclass(frozen=True)
class SweepFolder:
    """``plan.json``, ``runs/`` and ``groups/``."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def lock(self) -> Path:
        return self.path / "plan.lock"

    def check(self) -> None:
        """ValueError if it holds files of somebody else. Runs may have come from elsewhere, without a plan."""
        check_vacant(self.path, "a sweep", first=self.plan.name, others=(self.lock.name, "runs", "groups"))

    def run(self, config: RecallConfig) -> Path:
        return self.path / "runs" / name_of(config)

    def group(self, name: str) -> GroupFolder:
        return GroupFolder(self.path / "groups" / name)

    def has_finished(self, config: RecallConfig) -> bool:
        return is_finished(self.run(config))

    def read(self, config: RecallConfig) -> Run:
        """The finished run, with all fields of its config: a version that knew fewer may have written it.

        ValueError if it was made with others, as where a default has changed since.
        """
        run, asked = read_run(self.run(config)), config.to_dict()
        others = differing_fields(run.config, asked)
        if others:
            raise ValueError(f"{run.folder} is another run: it differs in {', '.join(others)}; move it away")
        return replace(run, config=asked)
