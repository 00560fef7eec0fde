"""A run with all that it needs, checked: what is wrong shows before anything is computed or written."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebased.corpora import Corpus, Windows
from rebased.training.devices import choose_device
from rebased.training.language.config import LanguageRunConfig, RunOptions
from rebased.training.language.folder import check_same_run, check_sharding, describe_run
from rebased.training.language.layout import Layout, TrainingProcesses, current_processes, make_layout
from rebased.training.language.model_config import make_model_config
from rebased.training.language.packages import check_training_packages

if TYPE_CHECKING:
    from rebased.hf import RebasedConfig

__all__ = ["Job", "plan_job"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One process's view of a run."""

    config: LanguageRunConfig
    options: RunOptions
    corpus: Corpus
    windows: Windows
    """Of the train split."""
    out: Path
    model_config: "RebasedConfig"
    layout: Layout
    processes: TrainingProcesses
    device: str
    """"cpu" or "cuda"."""
    described: dict[str, Any]
    """What ``run.json`` says."""

    @property
    def compiles(self) -> bool:
        asked = self.options.compile
        return self.device == "cuda" and self.config.crossing if asked is None else asked

    def check_folder(self) -> None:
        """ValueError if this is not what goes on from what lies there."""
        check_same_run(self.out, self.described)
        check_sharding(self.out, sharded=self.options.fsdp)


def plan_job(config: LanguageRunConfig, corpus: Corpus, out: Path, options: RunOptions) -> Job:
    """ValueError, naming what is wrong; ImportError, naming it, for what is not installed."""
    processes = current_processes()
    device = _checked_device(config, options, processes)
    check_training_packages(options)
    layout = make_layout(
        config.batch_size,
        options.micro_batch,
        seq_len=config.seq_len,
        num_processes=processes.count,
        device=device,
    )
    model_config = make_model_config(config, vocab_size=corpus.vocab_size, end_of_text=corpus.end_of_text)
    model_config.fused_loss = options.fused_loss
    windows = Windows(corpus.split("train"), config.seq_len, crossing=config.crossing)
    if len(windows) < config.batch_size:
        raise ValueError(
            f"corpus {corpus.name!r} has {len(windows)} sequences of seq_len={config.seq_len}, less than one batch of "
            f"batch_size={config.batch_size}"
        )
    job = Job(
        config=config,
        options=options,
        corpus=corpus,
        windows=windows,
        out=out,
        model_config=model_config,
        layout=layout,
        processes=processes,
        device=device,
        described=describe_run(config, corpus),
    )
    job.check_folder()
    return job


def _checked_device(config: LanguageRunConfig, options: RunOptions, processes: TrainingProcesses) -> str:
    device = choose_device(options.device)
    if ":" in device:
        raise ValueError(f"device={device!r} names one of several; choose with CUDA_VISIBLE_DEVICES, and say 'cuda'")
    if options.compile and not config.crossing:
        raise ValueError("compile=True does not go with crossing=False: documents differ in length from batch to batch")
    if options.fsdp and not (device == "cuda" and processes.are_launched):
        raise ValueError("fsdp=True needs CUDA devices, and a process for each, as torchrun starts them")
    return device
