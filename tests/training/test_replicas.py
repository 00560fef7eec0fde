"""Runs trained together against runs trained alone, and against torch's own pieces."""

import json
import math
from functools import partial

import pytest
import torch
from recall_cases import SMALL, small_run
from torch import Tensor

from rebased.models import STACKS, LanguageModel
from rebased.training.order import epoch_order
from rebased.training.recall import RecallConfig
from rebased.training.replicas import Replicas

WITHOUT_DROPOUT = {"embedding_dropout": 0.0}


def first_rows(replicas: Replicas, size: int = 8) -> Tensor:
    seeds = [replicas.configs[i].seed for i in replicas.active]
    return epoch_order(seeds, 1, replicas.cell.num_train, "cpu")[:, :size]


@pytest.mark.parametrize("stack", STACKS)
def test_computing_labelled_positions_only_changes_nothing(stack: str) -> None:
    config = small_run(stack, dtype="float64")
    examples = config.train_set(1)[:8]
    torch.manual_seed(0)
    model = LanguageModel(config.model()).double().eval()
    weights = list(model.parameters())

    def loss_and_grads(logits: Tensor, labels: Tensor) -> list[Tensor]:
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return [loss, *torch.autograd.grad(loss, weights)]

    everywhere = loss_and_grads(model(examples.inputs), examples.labels)
    labelled = loss_and_grads(model(examples.inputs, at=examples.positions), examples.answers)
    for actual, expected in zip(labelled, everywhere, strict=True):
        assert (actual - expected).norm() <= 1e-9 * max(expected.norm(), everywhere[0] * 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stack", STACKS)
def test_gradients_do_not_depend_on_company(stack: str, dtype: str) -> None:
    tolerance = {"float32": 1e-5, "float64": 1e-9}[dtype]
    runs = [small_run(stack, seed=seed, dtype=dtype) for seed in (5, 6, 7)]
    together, alone = Replicas(runs), Replicas(runs[1:2])
    examples = together.cell.train_set(1)
    losses, grads = together.gradients(examples, first_rows(together))
    (loss,), alone_grads = alone.gradients(examples, first_rows(alone))
    assert abs(losses[1] - loss) <= tolerance * loss
    largest = max(grad.norm() for grad in alone_grads)
    for actual, expected in zip(grads, alone_grads, strict=True):
        assert (actual[1] - expected[0]).norm() <= tolerance * max(expected.norm(), 1e-3 * largest)


@pytest.mark.parametrize("stack", ["rebased", "attention", "mamba"])
def test_losses_of_the_first_steps_do_not_depend_on_company(stack: str) -> None:
    runs = [small_run(stack, seed=seed, num_train=80, learning_rate=rate) for seed in (5, 6) for rate in (1e-3, 1e-2)]
    together, alone = Replicas(runs), Replicas(runs[2:3])
    examples = together.cell.train_set(1)
    for step in range(10):
        losses = [
            replicas.train_step(
                examples,
                epoch_order([config.seed for config in replicas.configs], 1, 80, "cpu")[:, 8 * step : 8 * step + 8],
                torch.tensor([config.learning_rate for config in replicas.configs]),
            )
            for replicas in (together, alone)
        ]
        assert abs(losses[0][2] - losses[1][0]) <= 1e-5 * losses[1][0]


def test_a_step_is_that_of_torch() -> None:
    """Without dropout: the loss of a plain model, and `torch.optim.AdamW`."""
    runs = [small_run(seed=seed, learning_rate=rate, dtype="float64", model_options=WITHOUT_DROPOUT)
            for seed, rate in ((3, 1e-2), (4, 1e-3))]  # fmt: skip
    replicas = Replicas(runs)
    examples, order = replicas.cell.train_set(1), first_rows(replicas, 20)
    models = []
    for config in runs:
        torch.manual_seed(config.seed)
        models.append(LanguageModel(config.model()).double())
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        for model, config in zip(models, runs, strict=True)
    ]
    for rows in order.split(8, dim=1):  # the last one is smaller
        losses = replicas.train_step(examples, rows, torch.tensor([1e-2, 1e-3], dtype=torch.float64))
        for model, optimizer, own_rows, loss in zip(models, optimizers, rows, losses, strict=True):
            batch = examples[own_rows]
            logits = model(batch.inputs, at=batch.positions)
            expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.answers.flatten())
            assert abs(loss - expected) <= 1e-9
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
    for index, model in enumerate(models):
        for name, weight in replicas.weights(index).items():
            assert torch.allclose(weight, model.get_parameter(name), atol=1e-9), name


@pytest.mark.parametrize("stack", ["rebased", "attention"])
@pytest.mark.parametrize("parts", [2, 3])
def test_micro_batches_change_nothing(parts: int, stack: str) -> None:
    runs = [small_run(stack, seed=seed, dtype="float64") for seed in (1, 2)]
    whole, in_parts = Replicas(runs), Replicas(runs, micro_batches=parts)
    examples = whole.cell.train_set(1)
    for size in (8, 3):
        results = [replicas.gradients(examples, first_rows(whole, size)) for replicas in (whole, in_parts)]
        for expected, actual in zip(*([losses, *grads] for losses, grads in results), strict=True):
            torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("stack", ["rebased", "attention"])
def test_going_on_from_saved_tensors_is_never_having_stopped(stack: str) -> None:
    runs = [small_run(stack, seed=seed, epochs=4) for seed in range(3)]
    straight = Replicas(runs)
    straight.train_epoch()
    epoch, active, tensors = straight.epoch, list(straight.active), straight.tensors()
    resumed = Replicas(runs)
    resumed.load(epoch, active, tensors)
    for replicas in (straight, resumed):
        replicas.leave([1])
    records = [[replicas.train_epoch() for _ in range(2)] for replicas in (straight, resumed)]
    assert records[0] == records[1]
    assert all(set(epoch) == {0, 2} for epoch in records[0])
    for name, x in straight.tensors().items():
        assert torch.equal(x, resumed.tensors()[name]), name


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("blocks.1.mixer.bias", torch.zeros(2, 12), r"blocks\.1\.mixer\.bias is \(12,\) there and absent here"),
        ("norm.bias", None, r"norm\.bias is absent there and \(12,\) here"),
        ("norm.bias", torch.zeros(2, 1), r"norm\.bias is \(1,\) there and \(12,\) here"),  # broadcasts, so it would fit
    ],
    ids=["more", "less", "other shape"],
)
def test_another_models_tensors_are_refused(name: str, tensor: Tensor | None, message: str) -> None:
    """A mixer's code was edited between two calls of one command, and the second went on with half of the weights."""
    runs = [small_run(seed=seed) for seed in (0, 1)]
    tensors = Replicas(runs).tensors()
    for kind in ("weights", "means", "squares"):
        tensors.pop(f"{kind}.{name}", None)
        if tensor is not None:
            tensors[f"{kind}.{name}"] = tensor
    with pytest.raises(ValueError, match=f"another model's: {message}; restore the code .* or begin anew"):
        Replicas(runs).load(1, [0, 1], tensors)


def test_every_epoch_has_its_order_and_learning_rate() -> None:
    config = small_run(epochs=4, learning_rate=1.0)
    replicas = Replicas([config])
    rates = [replicas.train_epoch()[0].learning_rate for _ in range(4)]
    assert rates == [config.learning_rate_in(epoch) for epoch in (1, 2, 3, 4)]
    assert rates == pytest.approx([(1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4)])
    orders = epoch_order([1, 2], 1, 100, "cpu"), epoch_order([1, 2], 2, 100, "cpu")
    assert len({tuple(row.tolist()) for order in orders for row in order}) == 4
    for order in orders:
        assert torch.equal(order.sort(dim=1).values, torch.arange(100).expand(2, 100))
    assert torch.equal(epoch_order([2], 1, 100, "cpu")[0], orders[0][1])


def test_runs_end_for_a_reason() -> None:
    replicas = Replicas([small_run(learning_rate=rate, epochs=2) for rate in (1e-3, 1e30)])
    first = replicas.train_epoch()
    assert first[0].finished is None
    assert first[1].finished == "diverged"
    replicas.leave([1])
    assert replicas.train_epoch()[0].finished == "epochs"
    last_step = Replicas([small_run(num_train=8, epochs=1, learning_rate=1e38)])  # its loss is that before the step
    assert last_step.train_epoch()[0].finished == "diverged"
    easy = Replicas([small_run(stop_above=1e-9)])
    easy.accuracies = lambda: [0.5]  # type: ignore[method-assign]
    assert easy.train_epoch()[0].finished == "reached"


def test_accuracy_counts_labelled_positions() -> None:
    config = small_run()
    replicas = Replicas([config])
    test = config.test_set()
    model = LanguageModel(config.model()).eval()
    model.load_state_dict(replicas.weights(0))
    correct = (model(test.inputs).argmax(-1) == test.labels)[test.labels >= 0]
    assert replicas.accuracies() == [pytest.approx(correct.double().mean().item())]


def test_an_endless_set_is_new_every_epoch() -> None:
    config = small_run(endless=True)
    first, second = config.train_set(1), config.train_set(2)
    assert not torch.equal(first.inputs, second.inputs)
    assert torch.equal(small_run(endless=True, num_train=40).train_set(1).inputs[20:], second.inputs)


def test_watched_parameters_are_described_every_epoch() -> None:
    replicas = Replicas([small_run(seed=seed, watch=r"\.gammas\.") for seed in (0, 1)])
    records = replicas.train_epoch()
    for index, record in records.items():
        weights = replicas.weights(index)
        assert record.watched == {
            name: pytest.approx([weights[name].mean().item(), weights[name].std(correction=0).item()])
            for name in ("blocks.1.mixer.gammas.0", "blocks.1.mixer.gammas.1")
        }
    assert records[0].watched != records[1].watched
    assert Replicas([small_run()]).train_epoch()[0].watched == {}


def test_bfloat16_has_rounded_gradients_of_the_same_batch() -> None:
    def gradients(dtype: str, seed: int) -> Tensor:
        replicas = Replicas([small_run(dtype=dtype, seed=seed)])
        _, grads = replicas.gradients(replicas.cell.train_set(1), first_rows(replicas))
        return torch.cat([grad.flatten() for grad in grads])

    exact, rounded, other = gradients("float32", 0), gradients("bfloat16", 0), gradients("bfloat16", 1)
    assert 1e-5 < (rounded - exact).norm() / exact.norm() < 0.05
    assert (other - exact).norm() / exact.norm() > 0.5


def check_compiled_once(stack: str) -> None:
    """Compiled steps learn the same, and nothing is compiled anew when runs leave."""
    runs = [small_run(stack, seed=seed) for seed in range(4)]
    losses = []
    for compile in (False, True):
        replicas = Replicas(runs, compile=compile)
        records = [replicas.train_epoch()]
        num_programs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for leaving in (0, 2):
            replicas.leave([leaving])
            records.append(replicas.train_epoch())
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == num_programs
        losses.append([record.loss for epoch in records for record in epoch.values()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("stack", ["rebased", "mamba"])
def test_traced_once(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))  # the slow part left out
    check_compiled_once(stack)


@pytest.mark.slow
@pytest.mark.parametrize("stack", ["rebased", "h3"])
def test_compiled_once(stack: str) -> None:
    check_compiled_once(stack)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stack": "nothing"}, "stack='nothing' is unknown; there are attention"),
        ({"task": "nothing"}, "task='nothing' is unknown; there are mqar, .*; one of your own must be imported first"),
        ({"task_options": {"pairs": 3}}, "task_options has pairs; mqar has num_pairs, power"),
        ({"task_options": {"num_pairs": "a"}}, "num_pairs is 'a'; it must be an integer"),
        ({"task_options": {}}, "task_options=.* do not fit task='mqar'"),
        ({"batch_size": 21}, "batch_size=21 must be at most num_train=20"),
        ({"task_options": {"num_pairs": 5}}, "num_pairs=5"),
        ({"model_options": {"seq_len": 3}}, "model_options has seq_len"),
        ({"model_options": {"depth": 3}}, "ModelConfig has no depth"),
        ({"epochs": 0}, "epochs=0"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0"),
        ({"stop_above": 1.5}, "stop_above=1.5"),
        ({"dtype": "int8"}, "dtype='int8' is unknown"),
        ({"watch": "("}, "watch='\\(' is no regular expression"),
        ({"watch": 3}, "watch=3 is no regular expression"),
        ({"test_seed": 42}, "both 42"),
        ({"test_seed": 42, "endless": True}, "both 42"),
        ({"endless": "no"}, "endless='no' must be true or false"),
        ({"seed": "a"}, "seed='a' must be an integer"),
        ({"seed": 2**63}, "must be an integer from 0"),
        ({"train_seed": -1}, "train_seed=-1 must be an integer from 0"),
        ({"weight_decay": float("inf")}, "weight_decay=inf must be finite"),
        ({"weight_decay": "0.1"}, "weight_decay='0.1' must be a number"),
        ({"task_options": {"num_pairs": 3, "first_example": 1}}, "task_options has first_example"),
        ({"vocab_size": 10}, "vocab_size=10"),
    ],
)
def test_impossible_runs(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_run(**changes)  # type: ignore[arg-type]


def test_a_run_as_plain_values() -> None:
    config = small_run()
    assert RecallConfig.from_dict(config.to_dict()) == config
    with_layers = small_run(model_options={"layers": config.model().layers})
    plain = json.loads(json.dumps(with_layers.to_dict()))
    assert RecallConfig.from_dict(plain).to_dict() == plain
    assert RecallConfig.from_dict(plain).model() == config.model()
    assert (
        small_run(learning_rate=1, weight_decay=-0.0).to_dict()
        == small_run(learning_rate=1.0, weight_decay=0).to_dict()
    )
    assert set(config.identity()) == {"stack", "learning_rate", "seed", *SMALL}
    assert "endless" in small_run(endless=True).identity()
    with pytest.raises(ValueError, match="has no speed; there are stack"):
        RecallConfig.from_dict(config.to_dict() | {"speed": 1})
    with pytest.raises(ValueError, match="needs d_model, seq_len"):
        RecallConfig.from_dict({"stack": "rebased", "seed": 1, "learning_rate": 1.0})


def test_runs_of_different_cells_do_not_mix() -> None:
    with pytest.raises(ValueError, match="differ in d_model; only learning_rate and seed may"):
        Replicas([small_run(), small_run(d_model=24)])
    with pytest.raises(ValueError, match="micro_batches=9"):
        Replicas([small_run()], micro_batches=9)
    with pytest.raises(ValueError, match="at least one run"):
        Replicas([])
