"""Several processes train what one trains: copies of a model with torchrun, and shards of it."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_cases import corpus, lines, small_run, train_in_a_process, train_small
from transformers import AutoModelForCausalLM

from rebased.hf import RebasedConfig, RebasedForCausalLM
from rebased.models.block import Block
from rebased.training.language.checkpoints import is_sharded

STEPS = 20
RATE = 2e-3
"""With more, Adam makes steps of what is rounding in gradients that are zero."""


def arguments(out: Path) -> list[str]:
    return [
        *("lm", "train", "--data", str(corpus().folder), "--out", str(out), "--preset", "rebased-small"),
        *("--device", "cpu", "--no-board", "--seq-len", "32", "--batch-size", "4", "--micro-batch", "1"),
        *(
            "--steps",
            str(STEPS),
            "--warmup-steps",
            "3",
            "--learning-rate",
            str(RATE),
            "--checkpoint-every",
            "10",
            "--eval-every",
            "10",
        ),
        *(f"--set={name}={value}" for name, value in small_run().changes.items()),
    ]


def torchrun(*arguments: str) -> tuple[str, str]:
    """The command in two processes, which must succeed: what it wrote to stdout and stderr."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*launch, "-m", "rebased.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,  # so that all of them can be ended
    )
    try:
        said, shown = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, shown
    return said, shown


def test_two_processes_with_torchrun(tmp_path: Path) -> None:
    """The command itself: equal losses, one voice, one checkpoint of both; and the run is finished for one process."""
    said, shown = torchrun(*arguments(tmp_path / "two"))
    assert said.count("trained on 2,560 tokens") == 1
    assert shown.count("begins: ") == 1
    assert "2 × cpu, 2 × 1 sequences a step" in shown

    config = small_run(steps=STEPS, learning_rate=RATE)
    train_small(tmp_path / "one", config, micro_batch=4, checkpoint_every=10, eval_every=10)
    two, one = lines(tmp_path / "two"), lines(tmp_path / "one")
    assert [line["step"] for line in two] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], abs=1e-5)
    assert [line["grad_norm"] for line in two] == pytest.approx([line["grad_norm"] for line in one], rel=1e-4)
    validation = [[line["validation_loss"] for line in x if "validation_loss" in line] for x in (two, one)]
    assert len(validation[0]) == 2
    assert validation[0] == pytest.approx(validation[1], abs=1e-5)
    assert one[-1]["loss"] < one[0]["loss"] - 0.5
    names = {path.name for path in (tmp_path / "two" / "checkpoints" / "checkpoint-20").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth", "complete", "optimizer.pt"} <= names
    assert train_small(tmp_path / "two", config)["steps"] == STEPS


# ---- Shards ----


def sharded_config() -> RebasedConfig:
    return RebasedConfig(vocab_size=64, max_position_embeddings=32, fused_loss=True, **small_run().changes)


def tokens_of(step: int) -> torch.Tensor:
    return torch.randint(0, 64, (4, 32), generator=torch.Generator().manual_seed(step % 2))


def optimizer_steps(model: torch.nn.Module, rows: slice) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(6):
        tokens = tokens_of(step)
        loss = model.train()(tokens[rows], labels=tokens[rows]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_shards(rank: int, store: Path) -> None:
    """One of two processes, each with half of every batch and half of every parameter."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}/group", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = RebasedForCausalLM(sharded_config())
    sizes = {name: x.numel() for name, x in model.named_parameters()}
    mesh = dist.init_device_mesh("cpu", (2,))
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh)
    local = {}
    for name, x in model.named_parameters():
        assert isinstance(x, DTensor), name
        assert x.placements == (Shard(0),), name
        local[name] = x.to_local().numel()
    losses = optimizer_steps(model, slice(2 * rank, 2 * rank + 2))
    assert isinstance(model.lm_head.weight, DTensor)
    assert model.lm_head.weight is model.model.backbone.embedding.weight
    torch.save({"losses": losses, "local": local, "sizes": sizes, "blocks": len(blocks)}, store / f"{rank}.pt")
    dist.destroy_process_group()


def run_both(target: Any, *arguments: Any) -> None:
    """In two processes, which are told their rank first."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lm_cases", "rebased.training.language.trainer", "rebased.hf"])
    processes = [context.Process(target=target, args=(rank, *arguments)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0]


def test_fully_sharded(tmp_path: Path) -> None:
    run_both(train_shards, tmp_path)
    found: list[dict[str, Any]] = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert found[0]["blocks"] == 2
    for name, size in found[0]["sizes"].items():
        parts = [each["local"][name] for each in found]
        assert sum(parts) == size
        assert min(parts) > 0, name
    torch.manual_seed(0)
    expected = optimizer_steps(RebasedForCausalLM(sharded_config()), slice(0, 4))
    mean = [sum(pair) / 2 for pair in zip(*(each["losses"] for each in found), strict=True)]
    assert mean == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]


# ---- Shards, by the trainer itself ----


def train_sharded(rank: int, port: int, corpus_folder: Path, out: Path, dtype: str) -> None:
    """``--fsdp``, on devices that accelerate takes for GPUs: on a CPU it would not shard."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    from torch.distributed.tensor import DTensor

    from rebased.training.language import job, trainer

    address = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in address.items()})
    job._checked_device = lambda *_: "cpu"
    original, prepare = trainer.training_arguments, trainer.LanguageTrainer._prepare_for_training

    def pretend(*arguments: Any, **options: Any) -> Any:
        made = original(*arguments, **options)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        return made

    def prepare_and_look(self: Any, *arguments: Any, **options: Any) -> Any:
        result = prepare(self, *arguments, **options)
        assert all(isinstance(x, DTensor) for x in self.model.parameters())
        assert sum(type(module).__name__ == "FSDPBlock" for module in self.model.modules()) == 2
        return result

    trainer.training_arguments = pretend
    trainer.LanguageTrainer._prepare_for_training = prepare_and_look
    changes = {"learning_rate": RATE, "dtype": dtype}
    train_in_a_process(corpus_folder, out, changes, {"fsdp": True, "micro_batch": 1, "eval_every": 5})


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-5), ("bfloat16", 5e-4)])
def test_the_trainer_shards(dtype: str, bound: float, tmp_path: Path) -> None:
    """With the losses of one process; and from a checkpoint it goes on to the same ones."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    run_both(train_sharded, port, corpus().folder, tmp_path / "two", dtype)
    train_small(tmp_path / "one", small_run(learning_rate=RATE, dtype=dtype), eval_every=5)
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], abs=bound)
    assert two[-1]["validation_loss"] == pytest.approx(one[-1]["validation_loss"], abs=bound)
    AutoModelForCausalLM.from_pretrained(tmp_path / "two")
    assert [is_sharded(tmp_path / name / "checkpoints" / "checkpoint-10") for name in ("one", "two")] == [False, True]

    for name in ("training.json", "model.safetensors", "checkpoints/checkpoint-12/complete"):
        (tmp_path / "two" / name).unlink()
    run_both(train_sharded, port, corpus().folder, tmp_path / "two", dtype)
    assert [line["loss"] for line in lines(tmp_path / "two")] == [line["loss"] for line in two]
