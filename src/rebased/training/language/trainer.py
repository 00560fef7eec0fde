"""`transformers.Trainer`, with our order of the data, our schedule, and checkpoints that count only when whole."""

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler, SequentialSampler
from transformers import PrinterCallback, Trainer, TrainingArguments
from typing_extensions import override

from rebased.hf.quietly import without_progress_bars
from rebased.training.language import checkpoints
from rebased.training.language.checkpoints import CheckpointError
from rebased.training.language.config import LanguageRunConfig, RunOptions
from rebased.training.language.layout import Layout, TrainingProcesses
from rebased.training.language.optimizer import decayed, learning_rate_factor
from rebased.training.language.sharding import SHARDING, embeddings_in_the_root, keep_float32, local_part

__all__ = ["LanguageTrainer", "training_arguments"]

_TORCH_CANNOT_WRITE = ("inline_container", "iostream error")
"""What torch says of a file it cannot write, in a RuntimeError: the type alone also means CUDA's errors, and NCCL's."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LanguageTrainer(Trainer):
    """Trains on the dataset in its own order, by our schedule; a checkpoint counts once it is whole and marked."""

    def __init__(
        self,
        config: LanguageRunConfig,
        *,
        keep: int,
        before_saving: Callable[[], None] = lambda: None,
        describe: Callable[[Path, int], None] = lambda folder, step: None,
        **arguments: Any,
    ) -> None:
        """``before_saving``: called when a checkpoint is due. Keywords not listed here are the base class's.

        ``describe(folder, step)``: writes what else belongs into a checkpoint.
        """
        self.run_config = config
        self._keep = keep
        self._before_saving = before_saving
        self._describe = describe
        super().__init__(**arguments)
        self.remove_callback(PrinterCallback)
        model: Any = self.model
        model.config.use_cache = True  # the base class changes it, and it would be saved so

    @override
    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        """The dataset itself is in order; batches are dealt to the processes in turn."""
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        return SequentialSampler(dataset)

    @override
    def get_decay_parameter_names(self, model: Any) -> list[str]:
        return decayed(model)

    @override
    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        if self.lr_scheduler is None:
            optimizer = self.optimizer if optimizer is None else optimizer
            self.lr_scheduler = LambdaLR(optimizer, lambda step: learning_rate_factor(self.run_config, step))
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @override
    def _prepare_for_training(self, *arguments: Any, **options: Any) -> Any:
        with embeddings_in_the_root(self.model) if self.is_fsdp_enabled else nullcontext():
            return super()._prepare_for_training(*arguments, **options)  # type: ignore[no-untyped-call]

    @override
    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """Accelerate's own way, but for shards, of which it would rather make bf16 weights."""
        if self.is_fsdp_enabled and self.args.bf16:
            return torch.autocast(self.args.device.type, torch.bfloat16)
        return super().autocast_smart_context_manager(cache_enabled)

    @override
    def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        """All that is logged goes to a file of ours; checkpoints need not have it, too."""
        super().log(logs, *arguments, **options)
        self.state.log_history.clear()

    @override
    def _save(self, *arguments: Any, **options: Any) -> None:
        with without_progress_bars():
            super()._save(*arguments, **options)

    @override
    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """CheckpointError, saying what is left, if the disk is full or fails; FloatingPointError as `check_weights`."""
        self.check_weights()
        folder = Path(str(self.args.output_dir))
        checkpoint = folder / checkpoints.name_of(self.state.global_step)
        with self.saving(f"the checkpoint of step {self.state.global_step}", checkpoint):
            self._before_saving()
            super()._save_checkpoint(model, trial)
            if self.is_world_process_zero():
                self._describe(checkpoint, self.state.global_step)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                checkpoints.mark(checkpoint)
                checkpoints.prune(folder, self._keep)

    def check_weights(self) -> None:
        """FloatingPointError, in every process, if some are not finite: nothing may go on from these.

        A step's loss is of the weights before it, and tells nothing of those after it.
        """
        model: Any = self.model
        are_finite = torch.stack([local_part(x).isfinite().all() for x in model.parameters()])
        if self.accelerator.reduce((~are_finite).sum(), reduction="sum").item():
            raise FloatingPointError(
                f"weights after step {self.state.global_step} are not finite; try a lower learning rate"
            )

    @contextmanager
    def saving(self, what: str, target: Path) -> Iterator[None]:
        """Errors of the disk leave nothing half-written there, and say what is left; others stay what they are."""
        try:
            yield
        except (OSError, RuntimeError, SafetensorError) as error:
            if not _is_of_the_disk(error):
                raise
            checkpoints.remove(target)
            steps = checkpoints.checkpoint_steps(Path(str(self.args.output_dir)))
            left = f"goes on from step {steps[-1]}" if steps else "begins anew"
            first = "make room, and " if _is_for_want_of_room(error) else ""
            raise CheckpointError(
                f"{what} could not be written ({_reason(error)}); {first}the same command {left}"
            ) from error


def check_overrides(trainer: type) -> None:
    """ImportError for a method that its base class does not know: a library that has renamed it would never call it."""
    for name, function in vars(trainer).items():
        if getattr(function, "__override__", False) and not hasattr(trainer.__base__, name):
            raise ImportError(f"transformers has no Trainer.{name}, which rebased relies on; 5.13 to 5.22 have it")


check_overrides(LanguageTrainer)


def training_arguments(
    config: LanguageRunConfig,
    options: RunOptions,
    layout: Layout,
    processes: TrainingProcesses,
    *,
    folder: Path,
    device: str,
) -> TrainingArguments:
    """Creating them joins the other processes, if there are some."""
    is_cuda = device == "cuda"
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=config.steps,
        per_device_train_batch_size=layout.micro_batch,
        gradient_accumulation_steps=layout.accumulation,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        adam_beta1=config.beta1,
        adam_beta2=config.beta2,
        max_grad_norm=config.clip,
        optim="adamw_torch_fused",
        seed=config.seed,
        bf16=config.dtype == "bfloat16",
        gradient_checkpointing=options.gradient_checkpointing,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="no",  # we say when
        report_to=[],
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        use_cpu=not is_cuda,
        ddp_backend=("nccl" if is_cuda else "gloo") if processes.are_launched else None,
        ddp_find_unused_parameters=False,
        dataloader_drop_last=True,
        dataloader_pin_memory=is_cuda,
        remove_unused_columns=False,
        **(SHARDING if options.fsdp else {}),
    )
    if options.fsdp:
        keep_float32(arguments)
    if processes.count == 1:
        # One process trains on one device; the base class would copy the model to all that it sees.
        _ = arguments.device
        arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


def _is_of_the_disk(error: Exception) -> bool:
    return not isinstance(error, RuntimeError) or any(part in str(error) for part in _TORCH_CANNOT_WRITE)


def _is_for_want_of_room(error: Exception) -> bool:
    """Of the disk's errors: torch never says why it cannot write, and mostly that is why."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    return isinstance(error, RuntimeError) or any(f"(os error {number})" in str(error) for number in _NO_ROOM)


def _reason(error: BaseException) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
