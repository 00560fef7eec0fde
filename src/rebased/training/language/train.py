"""A run from its configuration to a model on disk, or from wherever it was when it was killed."""

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Subset

from rebased.corpora import Corpus, Windows
from rebased.corpora.windows import spread
from rebased.environment import describe_environment
from rebased.locks import locked
from rebased.training.language import folder as run_folder
from rebased.training.language.batches import collate, collate_packed
from rebased.training.language.checkpoints import (
    CHECKPOINTS,
    CheckpointError,
    check_readable,
    last_checkpoint,
    prune,
    step_of,
)
from rebased.training.language.config import LanguageRunConfig, RunOptions
from rebased.training.language.flops import flops_per_token, peak_flops
from rebased.training.language.job import Job, plan_job
from rebased.training.language.layout import Layout
from rebased.training.language.metrics import StepRecord, read_metrics
from rebased.training.language.order import Order
from rebased.training.language.records import Records, open_records
from rebased.training.language.stopping import stopping_after_a_step
from rebased.training.language.validation import LOGITS_AT_A_TIME, shares, validation_loss

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from rebased.hf import RebasedForCausalLM
    from rebased.training.language.trainer import LanguageTrainer

__all__ = ["PartMade", "Report", "Stopping", "TrainingStarted", "train"]


@dataclass(frozen=True, kw_only=True)
class TrainingStarted:
    """Training begins, or goes on."""

    step: int
    """Steps made before."""
    steps: int
    num_parameters: int
    device: str
    num_processes: int
    layout: Layout


@dataclass(frozen=True)
class PartMade:
    """Of the micro-batches of a step so many are through, not yet all. A GPU may still be at them."""

    step: int
    parts: int


@dataclass(frozen=True)
class Stopping:
    """A signal asked to stop: training ends with the step that it is at, or at once after another signal."""


Report = Callable[[TrainingStarted | PartMade | StepRecord | Stopping], None]
"""Called in the main process only; with `Stopping` from another thread, while the main one goes on."""


def train(
    config: LanguageRunConfig,
    corpus: Corpus,
    out: Path | str,
    options: RunOptions | None = None,
    *,
    report: Report = lambda event: None,
) -> dict[str, Any]:
    """Train what is not trained yet, and return what ``training.json`` says.

    The same call goes on from the last checkpoint that counts; of a finished run it only reads the result. Called in
    each of torchrun's processes, they train together. ValueError, before any work, for what cannot be or does not fit
    the folder; KeyboardInterrupt, with a checkpoint, after a SIGINT or SIGTERM; `CheckpointError` if the disk is full
    or fails; FloatingPointError if losses, gradients or weights are not finite; `LockedError` while another process
    trains there. Other errors that end the training leave their traceback in ``error.txt``, and have a note of that.
    """
    out = Path(out)
    job = plan_job(config, corpus, out, RunOptions() if options is None else options)
    finished = run_folder.read_training(out)
    if finished is not None:
        return finished
    model = _make_model(job)
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        if job.processes.is_main:
            stack.enter_context(locked(out / ".lock", f"the run in {out}"))
        return _train(job, model, report)


def _make_model(job: Job) -> "RebasedForCausalLM":
    from rebased.hf import RebasedForCausalLM

    torch.manual_seed(job.config.seed)
    try:
        model = RebasedForCausalLM(job.model_config)
    except TypeError as error:
        raise ValueError(f"the model cannot be built: {error}") from error
    if job.compiles:
        # Layer by layer: those of a kind share what is compiled, which takes seconds where the whole takes minutes.
        for block in model.model.backbone.blocks:
            block.compile()
    return model


def _train(job: Job, model: "RebasedForCausalLM", report: Report) -> dict[str, Any]:
    from rebased.training.language.observer import Observer
    from rebased.training.language.trainer import training_arguments

    config, options, processes = job.config, job.options, job.processes
    folder = job.out / CHECKPOINTS
    arguments = training_arguments(config, options, job.layout, processes, folder=folder, device=job.device)
    place = torch.device(arguments.device)
    _wait()  # until the main process has the lock: who had it before may have trained here
    job.check_folder()
    finished = run_folder.read_training(job.out)
    if finished is not None:
        _leave()
        return finished
    checkpoint = _begin_or_go_on(job, folder)
    first_step = 0 if checkpoint is None else step_of(checkpoint)
    num_parameters = sum(x.numel() for x in model.parameters())
    describe = partial(_describe, job, num_parameters, dataclasses.asdict(describe_environment(place)))
    utilisation = _utilisation(job, model, place)

    with (
        _keeping_tracebacks(job),
        open_records(job, first_step) as records,
        stopping_after_a_step(processes.count == 1, announce=lambda: report(Stopping())) as stop,
    ):

        def write(record: StepRecord) -> None:
            records.write(record)
            if processes.is_main:
                report(record)

        def tell_part(step: int, parts: int) -> None:
            if processes.is_main:
                report(PartMade(step, parts))

        trainer = _make_trainer(job, model, arguments, records, describe)
        trainer.add_callback(
            Observer(
                tokens_per_step=config.tokens_per_step,
                utilisation=utilisation,
                write=write,
                part_made=tell_part,
                validate=_validation(job, trainer, place),
                eval_every=options.eval_every,
                checkpoint_every=options.checkpoint_every,
                stop=stop,
            )
        )
        torch.manual_seed(config.seed + processes.rank)  # every process drops others
        if processes.is_main:
            report(
                TrainingStarted(
                    step=first_step,
                    steps=config.steps,
                    num_parameters=num_parameters,
                    device=place.type,
                    num_processes=processes.count,
                    layout=job.layout,
                )
            )
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if trainer.state.global_step < config.steps:
            raise KeyboardInterrupt(f"stopped after step {trainer.state.global_step}")
        _export(job, trainer)
    facts = describe(config.steps)
    if processes.is_main:
        run_folder.write_training(job.out, facts)
    _leave()
    return facts


@contextmanager
def _keeping_tracebacks(job: Job) -> Iterator[None]:
    """In the run's folder, of what nobody has foreseen."""
    try:
        yield
    except (CheckpointError, FloatingPointError):  # they say all that there is to say
        raise
    except Exception as error:
        path = run_folder.add_error(job.out, error, rank=job.processes.rank)
        if path is not None:
            error.add_note(f"the traceback is in {path}")
        raise


def _begin_or_go_on(job: Job, folder: Path) -> Path | None:
    """The checkpoint to go on from, if there is one, once nothing is left that does not count."""
    if job.processes.is_main:
        run_folder.begin(job.out, job.described)
        prune(folder)
    _wait()
    checkpoint = last_checkpoint(folder)
    if checkpoint is not None:
        check_readable(checkpoint)
    return checkpoint


def _make_trainer(
    job: Job,
    model: "RebasedForCausalLM",
    arguments: "TrainingArguments",
    records: Records,
    describe: Callable[[int], dict[str, Any]],
) -> "LanguageTrainer":
    from rebased.training.language.trainer import LanguageTrainer

    config = job.config
    return LanguageTrainer(
        config,
        keep=job.options.keep,
        before_saving=records.sync,
        describe=lambda folder, step: run_folder.write_training(folder, describe(step)),
        model=model,
        args=arguments,
        train_dataset=Order(job.windows, seed=config.seed, num_sequences=config.steps * config.batch_size),
        data_collator=collate if config.crossing else collate_packed,
        processing_class=job.corpus.tokenizer(),
    )


def _describe(job: Job, num_parameters: int, environment: dict[str, Any], step: int) -> dict[str, Any]:
    """What is beside the weights of a step."""
    lines: dict[int, dict[str, Any]] = {line["step"]: line for line in read_metrics(job.out)}
    line = lines.get(step, {})
    return {
        "model": job.config.model,
        "seed": job.config.seed,
        "steps": step,
        "tokens": step * job.config.tokens_per_step,
        "corpus": job.corpus.name,
        "tokenizer": job.corpus.tokenizer_hash,
        "parameters": num_parameters,
        "loss": line.get("loss"),
        "validation_loss": line.get("validation_loss"),
        "config": job.described,
        "environment": environment,
    }


def _utilisation(job: Job, model: "RebasedForCausalLM", device: torch.device) -> Callable[[float], float | None]:
    """Of the devices' peak, given tokens per second."""
    flops = flops_per_token(model.model.backbone, job.config.seq_len)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    peak = peak_flops(name, job.config.dtype)
    return lambda speed: None if peak is None else speed * flops / (peak * job.processes.count)


def _validation(job: Job, trainer: "LanguageTrainer", device: torch.device) -> Callable[[], float | None]:
    config = job.config
    split = job.corpus.split("validation")
    if split.num_tokens < (config.seq_len if config.crossing else 1):  # not one sequence was held out
        return lambda: None
    windows = Windows(split, config.seq_len, crossing=config.crossing)
    num_sequences = min(job.options.eval_sequences, len(windows))
    sample = Subset(windows, spread(len(windows), num_sequences))
    fitting = max(1, LOGITS_AT_A_TIME // (config.seq_len * job.model_config.vocab_size))
    batches = shares(num_sequences, min(job.layout.micro_batch, fitting), job.processes)
    join = collate if config.crossing else collate_packed
    gather_sum = partial(trainer.accelerator.reduce, reduction="sum")

    def validate() -> float:
        with trainer.compute_loss_context_manager():
            model = trainer.model_wrapped
            return validation_loss(model, sample, batches, join, device=device, gather_sum=gather_sum)

    return validate


def _export(job: Job, trainer: "LanguageTrainer") -> None:
    """The model and its tokenizer into the run's folder. FloatingPointError for weights that are not finite."""
    trainer.check_weights()
    whole = job.out / ".model"
    if job.processes.is_main:
        shutil.rmtree(whole, ignore_errors=True)
    _wait()
    model: Any = trainer.model
    model.config.fused_loss = False  # a matter of this training, not of the model
    with trainer.saving("the model", whole):
        trainer.save_model(str(whole))
        if job.processes.is_main:
            (whole / "training_args.bin").unlink(missing_ok=True)
            run_folder.adopt_model(whole, job.out)
    _wait()


def _wait() -> None:
    """For the other processes, if there are some."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def _leave() -> None:
    """Part from the other processes; if nobody does, torch complains."""
    _wait()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
