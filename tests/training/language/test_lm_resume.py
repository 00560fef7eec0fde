"""Runs that were killed, at any moment, and runs whose disk was full: they end as if nothing had happened."""

import dataclasses
import errno
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_cases import STEPS, corpus, history, lines, small_options, small_run, train_in_a_process, train_small
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Trainer

from rebased.corpora import Corpus
from rebased.locks import LockedError, locked
from rebased.training.language import checkpoints, folder, job
from rebased.training.language import train as train_module
from rebased.training.language.checkpoints import CheckpointError, checkpoint_steps
from rebased.training.language.observer import Observer
from rebased.training.language.train import Stopping, train

DROPPING = {"embedding_dropout": 0.2, "residual_dropout": 0.2}
"""So that random numbers matter."""


def run_config() -> Any:
    return small_run(changes=small_run().changes | DROPPING)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As the processes that are killed have: sums of several threads round otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    train_small(out, run_config(), eval_every=4)
    return out


def assert_same(out: Path, expected: Path) -> None:
    """Bit for bit: losses, norms, rates, weights; every step once, and nothing left of what was broken off."""
    assert history(out) == history(expected)
    ours, theirs = (load_file(x / "model.safetensors") for x in (out, expected))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    assert not (out / ".model").exists()
    assert checkpoint_steps(out / "checkpoints") == [10, 12]
    assert len(list((out / "checkpoints").iterdir())) == 2


def test_dropout_matters(undisturbed: Path, tmp_path: Path) -> None:
    """Else these tests would not see that its random numbers are restored."""
    train_small(tmp_path)
    assert history(tmp_path) != history(undisturbed)


# ---- Broken off at chosen moments ----


class KilledError(BaseException):
    """Nobody catches it."""


def break_off(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, at_call: int, after: bool = False) -> None:
    """The process "dies" in a function's n-th call: before it has done anything, or when it is done."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def broken(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at_call and not after:
            raise KilledError
        result = original(*arguments, **options)
        if calls == at_call:
            raise KilledError
        return result

    monkeypatch.setattr(owner, name, broken)


MOMENTS = {
    "in the first step": (Trainer, "training_step", 1, False),
    "in a step after a checkpoint": (Trainer, "training_step", 8, False),
    "after a line, before its checkpoint": (Observer, "on_log", 10, True),
    "before a checkpoint's weights": (Trainer, "_save", 1, False),
    "between weights and optimizer": (Trainer, "_save", 2, True),
    "before the optimizer's state": (Trainer, "_save_optimizer_and_scheduler", 2, False),
    "before random numbers": (Trainer, "_save_rng_state", 2, False),
    "before the marker": (checkpoints, "mark", 2, False),
    "after the marker": (checkpoints, "mark", 2, True),
    "with a marker removed, the rest still there": (checkpoints.shutil, "rmtree", 1, False),
    "after the last checkpoint": (checkpoints, "prune", 3, True),
    "before the model is moved": (folder, "adopt_model", 1, False),
    "after the model is moved": (folder, "adopt_model", 1, True),
}


@pytest.mark.parametrize(("owner", "name", "at_call", "after"), MOMENTS.values(), ids=MOMENTS.keys())
def test_broken_off(
    owner: Any, name: str, at_call: int, after: bool, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_off(patch, owner, name, at_call=at_call, after=after)
        with pytest.raises(KilledError):
            train_small(tmp_path, run_config(), eval_every=4)
    train_small(tmp_path, run_config(), eval_every=4)
    assert_same(tmp_path, undisturbed)


def test_half_a_line_is_no_line(undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        break_off(patch, Trainer, "training_step", at_call=8)
        with pytest.raises(KilledError):
            train_small(tmp_path, run_config(), eval_every=4)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')
    train_small(tmp_path, run_config(), eval_every=4)
    assert_same(tmp_path, undisturbed)


# ---- Killed by the system ----


def test_killed(undisturbed: Path, tmp_path: Path) -> None:
    """By kill -9, some moment after it began: in a step, in a checkpoint, in the export. Lives until it is finished."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lm_cases", "rebased.training.language.trainer", "rebased.hf"])
    moments, kills = random.Random(0), 0
    arguments = (corpus().folder, tmp_path, {"changes": run_config().changes}, {"eval_every": 4})
    while not (tmp_path / "training.json").exists():
        process = context.Process(target=train_in_a_process, args=arguments)
        process.start()
        if kills < 6:
            _wait_for_life(tmp_path, process, kills)
            process.join(moments.uniform(0, 0.15))
            if process.is_alive():
                process.kill()
                kills += 1
        process.join(60)
        assert process.exitcode in (0, -signal.SIGKILL)
    assert kills >= 2
    assert_same(tmp_path, undisturbed)


def _wait_for_life(out: Path, process: Any, kills: int) -> None:
    """Until it has made a step of its own, so that lives get somewhere."""
    path = out / "metrics.jsonl"
    before = path.stat().st_mtime_ns if path.exists() else 0
    deadline = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < deadline:
        if path.exists() and path.stat().st_mtime_ns > before and path.stat().st_size:
            return
        time.sleep(0.005)


# ---- Numbers that are not finite ----


def spoil_gradients(monkeypatch: pytest.MonkeyPatch, *, at_call: int) -> None:
    """Of one step; its loss is what it was."""
    original, calls = Trainer.training_step, list[int]()

    def step(self: Any, model: Any, *arguments: Any, **options: Any) -> Any:
        loss = original(self, model, *arguments, **options)
        calls.append(1)
        if len(calls) == at_call:
            next(model.parameters()).grad.fill_(torch.nan)
        return loss

    monkeypatch.setattr(Trainer, "training_step", step)


def test_gradients_that_are_not_finite_end_the_run(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a step whose checkpoint is due: it used to be whole, and every other start failed in the step after it."""
    with monkeypatch.context() as patch:
        spoil_gradients(patch, at_call=10)
        with pytest.raises(FloatingPointError, match="the gradients of step 10 have norm nan; try a lower learning"):
            train_small(tmp_path, run_config(), eval_every=4)
    assert checkpoint_steps(tmp_path / "checkpoints") == [5]
    assert lines(tmp_path)[-1]["step"] == 9
    train_small(tmp_path, run_config(), eval_every=4)
    assert_same(tmp_path, undisturbed)


def test_weights_that_are_not_finite_are_no_checkpoint(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever made them so."""
    original = Observer.on_log

    def spoil(self: Any, args: Any, state: Any, control: Any, **options: Any) -> None:
        original(self, args, state, control, **options)
        if state.global_step == 10:
            next(options["model"].parameters()).data[0, 0] = torch.inf

    with monkeypatch.context() as patch:
        patch.setattr(Observer, "on_log", spoil)
        with pytest.raises(FloatingPointError, match="weights after step 10 are not finite; try a lower learning rate"):
            train_small(tmp_path, run_config(), eval_every=4)
    assert checkpoint_steps(tmp_path / "checkpoints") == [5]
    train_small(tmp_path, run_config(), eval_every=4)
    assert_same(tmp_path, undisturbed)


def test_weights_that_are_not_finite_are_not_exported(undisturbed: Path, tmp_path: Path) -> None:
    """From a last checkpoint of an earlier version, which did not look."""
    out = shutil.copytree(undisturbed, tmp_path / "run")
    for name in ("training.json", "model.safetensors"):
        (out / name).unlink()
    path = out / "checkpoints" / "checkpoint-12" / "model.safetensors"
    weights = load_file(path)
    next(iter(weights.values())).fill_(torch.nan)
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(FloatingPointError, match="weights after step 12 are not finite"):
        train_small(out, run_config(), eval_every=4)
    assert not (out / "training.json").exists()
    assert not (out / "model.safetensors").exists()


# ---- A full disk ----


def _train_with_small_files(limit: int, *arguments: Any) -> None:
    """A file that grows beyond ``limit`` bytes is refused by the system, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        train_in_a_process(*arguments)
    except CheckpointError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        Path(arguments[1], "said.json").write_text(json.dumps(str(error)))


@pytest.mark.parametrize(
    "limit", [100_000, 300_000], ids=["no room for the weights", "no room for the optimizer's state"]
)
def test_no_room_for_a_checkpoint(
    limit: int, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_off(patch, Trainer, "training_step", at_call=8)  # there is a checkpoint of step 5
        with pytest.raises(KilledError):
            train_small(tmp_path, run_config(), eval_every=4)
    context = multiprocessing.get_context("forkserver")
    arguments = (limit, corpus().folder, tmp_path, {"changes": run_config().changes}, {"eval_every": 4})
    process = context.Process(target=_train_with_small_files, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    said = json.loads((tmp_path / "said.json").read_text())
    assert said.startswith("the checkpoint of step 10 could not be written (")
    assert said.endswith("; make room, and the same command goes on from step 5")
    assert checkpoint_steps(tmp_path / "checkpoints") == [5]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    train_small(tmp_path, run_config(), eval_every=4)
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize(
    ("error", "is_for_want_of_room"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (SafetensorError("I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
        (OSError(errno.EISDIR, "Is a directory"), False),
        (SafetensorError("I/O error: Permission denied (os error 13)"), False),
    ],
    ids=str,
)
def test_room_is_asked_for_only_if_there_is_none(
    error: Exception, is_for_want_of_room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Trainer, "_save", fail)
    with pytest.raises(CheckpointError, match=r"step 5 could not be written .*the same command begins anew") as caught:
        train_small(tmp_path)
    assert ("make room" in str(caught.value)) == is_for_want_of_room


@pytest.mark.parametrize("owner_and_name", [(Trainer, "_save"), (checkpoints, "mark")], ids=["weights", "marker"])
def test_no_space_left(owner_and_name: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*owner_and_name, full)
    with pytest.raises(CheckpointError, match=r"step 5 .*\(No space left on device\); make room, .* begins anew"):
        train_small(tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("NCCL communicator was aborted on rank 0")],
    ids=["memory", "another process"],
)
def test_an_error_that_is_not_the_disk_s_stays_what_it_is(
    error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room on the disk is no remedy for it."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Trainer, "_save", fail)
    with pytest.raises(type(error)) as caught:
        train_small(tmp_path)
    assert caught.value is error


def test_no_space_left_for_the_model(undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder, "adopt_model", full)
        with pytest.raises(CheckpointError, match=r"the model could not .* goes on from step 12"):
            train_small(tmp_path, run_config(), eval_every=4)
    assert not (tmp_path / "model.safetensors").exists()
    train_small(tmp_path, run_config(), eval_every=4)
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop(
    number: signal.Signals, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the step it is at, and keeps it; the handlers are then what they were."""
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    original, calls = Trainer.training_step, list[int]()

    def step(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 7:
            os.kill(os.getpid(), number)
        return original(*arguments, **options)

    events: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", step)
        with pytest.raises(KeyboardInterrupt, match="stopped after step 7"):
            train(run_config(), corpus(), tmp_path, small_options(eval_every=4), report=events.append)
    assert events.count(Stopping()) == 1
    assert checkpoint_steps(tmp_path / "checkpoints") == [5, 7]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    train_small(tmp_path, run_config(), eval_every=4)
    assert_same(tmp_path, undisturbed)


# ---- The model at the end ----


def test_a_tokenizer_with_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken off after the model was moved, too: the folder is there then."""
    original = Corpus.tokenizer

    def tokenizer(self: Corpus) -> Any:
        made = original(self)
        made.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
        return made

    monkeypatch.setattr(Corpus, "tokenizer", tokenizer)
    with monkeypatch.context() as patch:
        break_off(patch, folder, "adopt_model", at_call=1, after=True)
        with pytest.raises(KilledError):
            train_small(tmp_path)
    train_small(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template.keys() == {"default", "tool_use"}
    template = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    assert template.read_text() == "{{ tools }}"
    assert template.stat().st_mode == (tmp_path / "run.json").stat().st_mode
    assert not (tmp_path / ".model").exists()


# ---- The same run, or another one ----


def test_another_run_is_named(undisturbed: Path) -> None:
    before = (undisturbed / "metrics.jsonl").read_bytes()
    other = small_run(learning_rate=1e-3, changes=run_config().changes | {"hidden_size": 64})
    message = r"is another run's: changes\.hidden_size=64, there 32; learning_rate=0\.001, there 0\.01; choose"
    with pytest.raises(ValueError, match=message):
        train_small(undisturbed, other)
    assert (undisturbed / "metrics.jsonl").read_bytes() == before


def test_a_field_that_is_new_is_as_its_default_was(undisturbed: Path, tmp_path: Path) -> None:
    """Of a run that an earlier version began, which did not know it."""
    out = shutil.copytree(undisturbed, tmp_path / "run")
    described = json.loads((out / "run.json").read_text())
    assert described.pop("crossing") is True
    (out / "run.json").write_text(json.dumps(described))
    assert train_small(out, run_config())["steps"] == STEPS
    with pytest.raises(ValueError, match="is another run's: crossing=False, there True; choose"):
        train_small(out, dataclasses.replace(run_config(), crossing=False))


def test_another_corpus_is_named(undisturbed: Path, tmp_path: Path) -> None:
    from rebased.corpora import prepare

    text = tmp_path / "other.txt"
    text.write_text("something else entirely. " * 500)
    other = prepare([str(text)], tmp_path / "other", validation=0.0)
    message = r"corpus\.content='\w+', there '\w+'; corpus\.train_tokens=12501, there \d+"
    with pytest.raises(ValueError, match=message):
        train(run_config(), other, undisturbed, small_options())


def test_a_corpus_is_known_by_its_content(undisturbed: Path, tmp_path: Path) -> None:
    """Not by its folder's name, and not by its size."""
    from rebased.corpora import open_corpus, prepare

    shutil.copytree(corpus().folder, tmp_path / "elsewhere")
    assert train(run_config(), open_corpus(tmp_path / "elsewhere"), undisturbed, small_options())["steps"] == 12
    texts = [tmp_path / name / "text.txt" for name in ("a", "b")]
    found = []
    for path, word in zip(texts, ("mat", "log"), strict=True):
        path.parent.mkdir()
        path.write_text(f"sat on the {word}. " * 200)
        found.append(prepare([str(path)], path.parent / "corpus", validation=0.0))
    assert len({each.split("train").num_tokens for each in found}) == 1
    train(run_config(), found[0], tmp_path / "run", small_options())
    with pytest.raises(ValueError, match=r"is another run's: corpus\.content="):
        train(run_config(), found[1], tmp_path / "run", small_options())


def test_without_a_checkpoint_other_options_are_welcome(tmp_path: Path) -> None:
    """As those that an error asks for."""
    with pytest.raises(FloatingPointError, match="try a lower learning rate"):
        train_small(tmp_path, small_run(learning_rate=1e9))
    train_small(tmp_path)
    assert [line["step"] for line in lines(tmp_path)] == list(range(1, 13))
    assert json.loads((tmp_path / "run.json").read_text())["learning_rate"] == 1e-2


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt"])
def test_a_checkpoint_that_cannot_be_read(
    name: str, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_off(patch, Trainer, "training_step", at_call=12)
        with pytest.raises(KilledError):
            train_small(tmp_path, run_config(), eval_every=4)
    newest = tmp_path / "checkpoints" / "checkpoint-10"
    (newest / name).write_bytes((newest / name).read_bytes()[:100])
    with pytest.raises(ValueError, match=rf"checkpoint-10/{name} cannot be read .*goes on from the one before"):
        train_small(tmp_path, run_config(), eval_every=4)
    shutil.rmtree(newest)
    train_small(tmp_path, run_config(), eval_every=4)
    assert_same(tmp_path, undisturbed)


def test_another_tokenizer_is_named(undisturbed: Path) -> None:
    path = undisturbed / "run.json"
    text = path.read_text()
    try:
        path.write_text(text.replace(corpus().tokenizer_hash, "0" * 64))
        with pytest.raises(ValueError, match=rf"corpus\.tokenizer='{corpus().tokenizer_hash}', there '0000"):
            train_small(undisturbed, run_config())
    finally:
        path.write_text(text)


def test_how_it_is_run_may_change(undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches, checkpoints, losses on the validation split; without dropout, losses stay what they were."""
    train_small(tmp_path / "alone")
    with monkeypatch.context() as patch:
        break_off(patch, Trainer, "training_step", at_call=8)
        with pytest.raises(KilledError):
            train_small(tmp_path / "changed")
    train_small(tmp_path / "changed", micro_batch=1, checkpoint_every=3, eval_every=2, keep=1, fused_loss=False)
    alone, changed = ([line["loss"] for line in lines(tmp_path / name)] for name in ("alone", "changed"))
    assert changed == pytest.approx(alone, rel=2e-6)
    assert [line["step"] for line in lines(tmp_path / "changed") if "validation_loss" in line] == [6, 8, 10, 12]
    assert checkpoint_steps(tmp_path / "changed" / "checkpoints") == [12]


def test_a_finished_run_is_left_alone(undisturbed: Path) -> None:
    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*") if path.is_file()}

    before = stamps()
    facts = train_small(undisturbed, run_config())
    assert facts["steps"] == STEPS
    assert facts == json.loads((undisturbed / "training.json").read_text())
    assert stamps() == before


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked.__wrapped__, "__kwdefaults__", {"patience": 0.0})
    with locked(tmp_path / ".lock", "it"), pytest.raises(LockedError, match="is in use by process"):
        train_small(tmp_path)


def let_another_train_first(monkeypatch: pytest.MonkeyPatch, out: Path, config: Any) -> None:
    """While the next call waits for the lock: it finds a free folder, and has the lock when this run is finished."""

    @contextmanager
    def locked_after_another(path: Path, what: str) -> Iterator[None]:
        monkeypatch.setattr(train_module, "locked", locked)
        train_small(out, config)
        with locked(path, what):
            yield

    monkeypatch.setattr(train_module, "locked", locked_after_another)


def test_another_run_that_was_faster_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_another_train_first(monkeypatch, tmp_path, small_run(seed=1, steps=6))
    with pytest.raises(ValueError, match=r"is another run's: seed=2, there 1; steps=12, there 6"):
        train_small(tmp_path, small_run(seed=2))
    assert len(lines(tmp_path)) == 6


def test_the_same_run_that_was_faster_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_another_train_first(monkeypatch, tmp_path, small_run(steps=6))
    report: list[Any] = []
    facts = train(small_run(steps=6), corpus(), tmp_path, small_options(), report=report.append)
    assert facts == json.loads((tmp_path / "training.json").read_text())
    assert not report


@pytest.mark.parametrize(("there", "asked"), [("sharded", False), ("not sharded", True)])
def test_a_checkpoint_of_the_other_kind_is_named(
    there: str, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards are gone on with by a sharded run alone, and the other way round."""
    monkeypatch.setattr(job, "_checked_device", lambda *_: "cpu")
    folder.begin(tmp_path, folder.describe_run(small_run(), corpus()))
    checkpoint = tmp_path / "checkpoints" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / ("pytorch_model_fsdp.bin" if there == "sharded" else "optimizer.pt")).touch()
    checkpoints.mark(checkpoint)
    message = rf"fsdp={asked} cannot go on from .*checkpoint-5, which is {there}; use fsdp={not asked}"
    with pytest.raises(ValueError, match=message):
        job.plan_job(small_run(), corpus(), tmp_path, small_options(fsdp=asked))
    job.plan_job(small_run(), corpus(), tmp_path, small_options(fsdp=not asked))
    (tmp_path / "training.json").write_text("{}")  # finished: nothing is gone on with
    job.plan_job(small_run(), corpus(), tmp_path, small_options(fsdp=asked))


# ---- The files ----


def test_only_marked_checkpoints_count(tmp_path: Path) -> None:
    for step in (5, 10, 15, 100):
        checkpoint = tmp_path / checkpoints.name_of(step)
        checkpoint.mkdir()
        (checkpoint / "weights").write_text("")
        if step != 100:
            checkpoints.mark(checkpoint)
    (tmp_path / "notes").mkdir()
    assert checkpoint_steps(tmp_path) == [5, 10, 15]
    assert checkpoints.last_checkpoint(tmp_path) == tmp_path / "checkpoint-15"
    checkpoints.prune(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-5", "checkpoint-10", "checkpoint-15", "notes"}
    checkpoints.prune(tmp_path, keep=2)
    assert checkpoint_steps(tmp_path) == [10, 15]
    assert checkpoints.last_checkpoint(tmp_path / "none") is None
