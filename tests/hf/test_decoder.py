"""Steps replayed from a graph, here from one that runs on a CPU: what ordinary steps give, whatever happens between."""

import copy
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from graph_on_cpu import GraphOnCpu
from hf_cases import MIXER_NAMES, small_model, some_tokens
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from rebased.hf import RebasedCache, RebasedForCausalLM
from rebased.hf.decoder import has_constant_state
from rebased.hf.replaying import STEPS_BEFORE_REPLAY, Replayer

CONSTANT = [name for name in MIXER_NAMES if name not in ("attention", "hyena")]
PROMPT = 6


@pytest.fixture(autouse=True)
def _count_from_zero() -> None:
    GraphOnCpu.num_recorded = GraphOnCpu.num_replayed = 0


def replaying(*mixers: str, **options: Any) -> RebasedForCausalLM:
    model = small_model(*mixers, **options)
    model._replayer = Replayer(GraphOnCpu, "cpu")
    return model


@torch.no_grad()
def steps(model: Any, tokens: Tensor, cache: RebasedCache | None = None) -> tuple[Tensor, RebasedCache]:
    """Logits along the tokens, one at a time after a prompt, or all of them after what the cache has seen."""
    logits, done = [], 0
    if cache is None:
        out = model(tokens[:, :PROMPT], use_cache=True)
        logits, cache, done = [out.logits], out.past_key_values, PROMPT
    for t in range(done, tokens.shape[1]):
        logits.append(model(tokens[:, t : t + 1], past_key_values=cache, use_cache=True).logits)
    return torch.cat(logits, dim=1), cache


@torch.no_grad()
def error(model: Any, tokens: Tensor) -> float:
    """Of steps, against one pass over all tokens."""
    expected = model(tokens, use_cache=False).logits
    return (steps(model, tokens)[0] - expected).abs().max().item()


# ---- What ordinary steps give ----


@pytest.mark.parametrize("mixer", CONSTANT)
def test_steps_equal_ordinary_ones(mixer: str) -> None:
    model, tokens = replaying("short_conv", mixer), some_tokens(2, 20)
    assert error(model, tokens) < 1e-9
    assert error(model, tokens.flip(1)) < 1e-9
    assert GraphOnCpu.num_recorded == 1


@pytest.mark.parametrize("mixer", ["attention", "hyena"])
def test_states_that_grow_are_not_recorded(mixer: str) -> None:
    model, tokens = replaying("short_conv", mixer), some_tokens(2, 20)
    assert error(model, tokens) < 1e-9
    assert GraphOnCpu.num_recorded == 0


def test_which_states_are_constant() -> None:
    found = {mixer: has_constant_state(small_model("short_conv", mixer).model.backbone) for mixer in MIXER_NAMES}
    assert [mixer for mixer, constant in found.items() if not constant] == ["attention", "hyena"]


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(
    "options",
    [{"do_sample": False}, {"do_sample": True}, {"do_sample": True, "num_return_sequences": 2}, {"num_beams": 3}],
    ids=["greedy", "sampling", "several", "beams"],
)
def test_generation(options: dict[str, Any], padding: int) -> None:
    """Of all that is generated after the third token, replayed; nobody is asked whether it is padding."""
    model, tokens = replaying(), some_tokens(2, 5)
    mask = torch.ones(2, 5, dtype=torch.int64)
    mask[1, :padding] = 0
    generated = []
    for use_cache in (False, True):
        torch.manual_seed(0)
        masks = note_masks(model)
        generated.append(
            model.generate(
                tokens, attention_mask=mask, use_cache=use_cache, max_new_tokens=15, pad_token_id=0, **options
            )
        )
    assert torch.equal(*generated)
    assert len(masks) == 15
    assert all(given is None for given in masks[1:])
    assert GraphOnCpu.num_recorded == 1
    assert GraphOnCpu.num_replayed == 14 - STEPS_BEFORE_REPLAY


def note_masks(model: Any) -> list[Tensor | None]:
    """Of the calls from now on."""
    masks: list[Tensor | None] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: masks.append(kwargs.get("attention_mask")), with_kwargs=True
    )
    return masks


@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("num_new", [1, 2])
def test_generation_from_a_cache(num_new: int, has_mask: bool) -> None:
    model, tokens = replaying(), some_tokens(2, 20 + num_new)
    mask = torch.ones(2, 20 + num_new, dtype=torch.int64) if has_mask else None
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, use_cache=False, **options)
    _, cache = steps(model, tokens[:, :20])
    assert cache.home is not None
    assert torch.equal(model.generate(tokens, past_key_values=cache, **options), expected)
    assert cache.home is not None


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_generation_with_the_prompt_in_pieces(chunk_size: int) -> None:
    model, tokens = replaying(), some_tokens(2, 9)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, :6] = 0
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(tokens, use_cache=False, **options)
    pieces: dict[str, Any] = {"past_key_values": RebasedCache(), "prefill_chunk_size": chunk_size}
    assert torch.equal(model.generate(tokens, **pieces, **options), expected)
    assert GraphOnCpu.num_recorded == 1


def test_generation_from_embeddings() -> None:
    model, tokens = replaying(), some_tokens(2, 5)
    options: dict[str, Any] = {"max_new_tokens": 15, "do_sample": False, "pad_token_id": 0}
    found = model.generate(inputs_embeds=model.get_input_embeddings()(tokens), **options)
    assert torch.equal(found, model.generate(tokens, **options)[:, 5:])
    assert GraphOnCpu.num_recorded == 1


@pytest.mark.parametrize("is_whole", [True, False], ids=["of all tokens", "of this one"])
def test_a_masked_token(is_whole: bool) -> None:
    """A graph has no mask: a token that a caller says is none had been counted all the same."""
    model, tokens = replaying(), some_tokens(2, 24)
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, 16] = 0
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask, use_cache=False).logits
        _, cache = steps(model, tokens[:, :16])
        before = cache.home
        for t in range(16, 24):
            given = mask[:, : t + 1] if is_whole else mask[:, t : t + 1]
            found = model(tokens[:, t : t + 1], attention_mask=given, past_key_values=cache).logits
            is_real = mask[:, t].bool()
            torch.testing.assert_close(found[is_real, 0], expected[is_real, t], rtol=1e-9, atol=1e-9)
            assert (cache.home is None) == (t == 16)
    assert cache.home is before is not None


def test_a_wrong_mask_is_an_error() -> None:
    """The same one with and without a graph."""
    model, tokens = replaying(), some_tokens(2, 20)
    _, cache = steps(model, tokens)
    with torch.no_grad(), pytest.raises(ValueError, match="attention_mask has 5 columns"):
        model(tokens[:, :1], attention_mask=torch.ones(2, 5), past_key_values=cache)


def test_to_the_last_position() -> None:
    """A graph recorded at the end of the position table; beyond it there is the usual error."""
    model = replaying()
    most = model.config.max_position_embeddings
    for left in range(STEPS_BEFORE_REPLAY + 1, 0, -1):
        model._replayer = Replayer(GraphOnCpu, "cpu")
        tokens = some_tokens(1, most - left)
        generated = model.generate(tokens, max_new_tokens=left, do_sample=False, pad_token_id=0)
        assert generated.shape[1] == most
    tokens = some_tokens(1, most)
    _, cache = steps(model, tokens)
    with pytest.raises(ValueError, match="position"):
        steps(model, tokens[:, :1], cache)


def test_beyond_any_position() -> None:
    """Without a table a model goes on, and is replayed, as long as one likes."""
    model = replaying(position_embedding_type="none", max_position_embeddings=8)
    tokens = some_tokens(2, 30)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
    _, cache = steps(model, tokens[:, :15])
    before = cache.home
    found, _ = steps(model, tokens[:, 15:], cache)
    torch.testing.assert_close(found, expected[:, 15:], rtol=1e-9, atol=1e-9)
    assert cache.home is before is not None


def test_beyond_the_positions_of_a_kernel() -> None:
    """A graph would go on without a word."""
    options = {"kernel_attention": {"kernel": "cosformer", "kernel_options": {"max_len": 14}}}
    layers = ("short_conv", "kernel_attention")
    model = replaying(*layers, layer_options=options, position_embedding_type="none")
    tokens = some_tokens(2, 14)
    _, cache = steps(model, tokens)
    assert GraphOnCpu.num_replayed > 0
    with pytest.raises(ValueError, match=r"kernel.max_len"):
        steps(model, tokens[:, :1], cache)


def test_states_of_another_structure() -> None:
    """Padding leaves a window's state with more in it."""
    model = replaying("short_conv", "attention", layer_options={"attention": {"window": 2}})
    tokens, mask = some_tokens(2, 20), torch.ones(2, PROMPT, dtype=torch.int64)
    assert error(model, tokens) < 1e-9
    mask[1, :3] = 0
    with torch.no_grad():
        cache = model(tokens[:, :PROMPT], attention_mask=mask, use_cache=True).past_key_values
        expected = model(tokens[1:, 3:], use_cache=False).logits[:, PROMPT - 3 :]
    found, _ = steps(model, tokens[:, PROMPT:], cache)
    torch.testing.assert_close(found[1:], expected, rtol=1e-9, atol=1e-9)
    assert GraphOnCpu.num_recorded == 2


def test_left_padding_token_by_token() -> None:
    """Masked tokens are not replayed, however many there are."""
    model, tokens = replaying(), some_tokens(2, 24)
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, :10] = 0
    cache, found = RebasedCache(), []
    with torch.no_grad():
        for t in range(24):
            out = model(tokens[:, t : t + 1], attention_mask=mask[:, : t + 1], past_key_values=cache, use_cache=True)
            found.append(out.logits)
        expected = [model(tokens[:1], use_cache=False).logits, model(tokens[1:, 10:], use_cache=False).logits]
    logits = torch.cat(found, dim=1)
    torch.testing.assert_close(logits[:1], expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(logits[1:, 10:], expected[1], rtol=1e-9, atol=1e-9)
    assert GraphOnCpu.num_recorded == 1


def test_another_number_of_tokens_is_an_error() -> None:
    model, tokens = replaying(), some_tokens(2, 20)
    _, cache = steps(model, tokens)
    with torch.no_grad(), pytest.raises(ValueError, match="state has 2 sequences"):
        model(tokens[:1, :1], past_key_values=cache)


# ---- Caches take turns ----


def test_caches_take_turns() -> None:
    """What one goes on from is not lost when another's steps are made."""
    model, tokens = replaying(), some_tokens(1, 24)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
    caches = [steps(model, tokens[:, :12])[1] for _ in range(2)]
    for t in range(12, 24):
        for cache in caches:
            found, _ = steps(model, tokens[:, t : t + 1], cache)
            torch.testing.assert_close(found, expected[:, t : t + 1], rtol=1e-9, atol=1e-9)
    assert GraphOnCpu.num_recorded == 1


@pytest.mark.parametrize(
    "fork",
    [lambda cache: RebasedCache(cache.state, cache.num_seen), copy.copy, copy.deepcopy],
    ids=["of its state", "copy", "deepcopy"],
)
def test_a_fork_of_a_cache_is_its_own(fork: Any) -> None:
    model, tokens = replaying(), some_tokens(2, 20)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
    _, cache = steps(model, tokens[:, :15])
    forked, before = fork(cache), cache.state
    steps(model, tokens[:, 15:], cache)
    found, _ = steps(model, tokens[:, 15:], forked)
    torch.testing.assert_close(found, expected[:, 15:], rtol=1e-9, atol=1e-9)
    again, _ = steps(model, tokens[:, 15:], RebasedCache(before, 15))
    torch.testing.assert_close(again, expected[:, 15:], rtol=1e-9, atol=1e-9)


class _Interrupted(TorchDispatchMode):
    """As soon as a state is read, another thread begins something, and gets as far as it is let."""

    def __init__(self, other: Callable[[], Any]) -> None:
        super().__init__()
        self.thread = threading.Thread(target=other, daemon=True)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_read = function in (torch.ops.aten.clone.default, torch.ops.aten.index_select.default)
        if is_read and args[0].is_floating_point() and self.thread.ident is None:
            self.thread.start()
            self.thread.join(timeout=0.3)
        return function(*args, **kwargs or {})


def _swapped_and_back(cache: RebasedCache) -> RebasedCache:
    cache.reorder_cache(torch.tensor([1, 0]))
    cache.reorder_cache(torch.tensor([1, 0]))
    return cache


def _repeated(cache: RebasedCache) -> RebasedCache:
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([1, 2]))
    return cache


@pytest.mark.parametrize(
    "read",
    [_swapped_and_back, _repeated, copy.copy, lambda cache: RebasedCache(cache.state, cache.num_seen)],
    ids=["reordered", "repeated", "copy", "of its state"],
)
def test_a_state_is_not_overwritten_while_it_is_read(read: Any) -> None:
    """A step of another cache, in another thread, had taken its place between the look at it and the copy."""
    model, tokens = replaying(), some_tokens(2, 20)
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
    _, other = steps(model, tokens.flip(1))
    _, cache = steps(model, tokens[:, :15])
    with _Interrupted(lambda: steps(model, tokens[:, :1], other)) as interruption:
        cache = read(cache)
    interruption.thread.join(timeout=60)
    assert other.home is not None
    found, _ = steps(model, tokens[:, 15:], cache)
    torch.testing.assert_close(found, expected[:, 15:], rtol=1e-9, atol=1e-9)


def test_a_state_that_is_replaced_does_not_come_back() -> None:
    """Another's step, which had begun to save it for its cache, gave it back after that had been emptied."""
    model, tokens = replaying(), some_tokens(2, 20)
    _, other = steps(model, tokens.flip(1))
    _, cache = steps(model, tokens)
    with _Interrupted(cache.reset) as interruption:
        steps(model, tokens[:, :1], other)
    interruption.thread.join(timeout=60)
    assert cache.state is None


@pytest.fixture
def _switching_often() -> Iterator[None]:
    """Threads, between any two operations."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@torch.no_grad()
def _error_among_others(model: Any, tokens: Tensor) -> float:
    """Of steps between which the state is chosen from, as a beam search does."""
    expected = model(tokens, use_cache=False).logits
    logits, cache = steps(model, tokens[:, :PROMPT])
    found = [logits]
    for t in range(PROMPT, tokens.shape[1]):
        if t % 3 == 0:
            cache.reorder_cache(torch.tensor([0, 1]))
        found.append(steps(model, tokens[:, t : t + 1], cache)[0])
    return (torch.cat(found, dim=1) - expected).abs().max().item()


@pytest.mark.usefixtures("_switching_often")
def test_threads() -> None:
    """Each with a cache of its own, all with one model: no state is read while another takes its place."""
    model = replaying()
    texts = [some_tokens(2, 30, seed=seed) for seed in range(4)]
    errors = [1.0] * 4

    def work(index: int) -> None:
        errors[index] = max(_error_among_others(model, texts[index]) for _ in range(3))

    _run_all([threading.Thread(target=work, args=(index,), daemon=True) for index in range(4)])
    assert max(errors) < 1e-9


@pytest.mark.usefixtures("_switching_often")
def test_threads_that_exchange_models() -> None:
    """Caches that move from one model's decoder to another's, in both directions at once: nobody waits for ever."""
    models = [replaying(), replaying()]  # of the same weights
    texts = [some_tokens(1, 60, seed=seed) for seed in range(2)]
    errors = [1.0] * 2

    def work(index: int) -> None:
        with torch.no_grad():
            expected = models[index](texts[index], use_cache=False).logits
        logits, cache = steps(models[index], texts[index][:, :PROMPT])
        found = [logits]
        for t in range(PROMPT, 60):
            found.append(steps(models[(index + t) % 2], texts[index][:, t : t + 1], cache)[0])
        errors[index] = (torch.cat(found, dim=1) - expected).abs().max().item()

    _run_all([threading.Thread(target=work, args=(index,), daemon=True) for index in range(2)])
    assert max(errors) < 1e-9


@pytest.mark.usefixtures("_switching_often")
def test_threads_that_look_at_hidden_states() -> None:
    """Each call has its own layers' inputs, and does not spoil the steps of others."""
    model = replaying()
    texts = [some_tokens(2, 20, seed=seed) for seed in range(4)]
    with torch.no_grad():
        expected = [model(text, use_cache=False, output_hidden_states=True).hidden_states for text in texts]
    counts, errors = set(), []

    def work(index: int) -> None:
        for _ in range(10):
            with torch.no_grad():
                found = model(texts[index], use_cache=False, output_hidden_states=True).hidden_states
            counts.add(len(found))
            errors.extend((x - y).abs().max().item() for x, y in zip(found, expected[index], strict=True))

    def step() -> None:
        errors.append(error(model, texts[0]))

    _run_all([threading.Thread(target=work, args=(index,), daemon=True) for index in range(4)])
    _run_all([threading.Thread(target=work, args=(0,), daemon=True), threading.Thread(target=step, daemon=True)])
    assert counts == {len(model.model.backbone.blocks) + 1}
    assert max(errors) < 1e-9
    assert GraphOnCpu.num_recorded == 1


def _run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)


# ---- The model changes between generations ----


def _add_hook(model: Any) -> None:
    model.model.backbone.blocks[0].register_forward_hook(lambda module, inputs, result: (result[0] * 2, result[1]))


def _wrap(model: Any) -> None:
    mixer = model.model.backbone.blocks[1].mixer
    mixer.v_proj = nn.Sequential(mixer.v_proj, nn.Tanh())


def _replace_data(model: Any) -> None:
    for x in model.model.backbone.blocks.parameters():
        x.data = x.data * 1.5


def _train(model: Any) -> None:
    with torch.no_grad():
        for x in model.parameters():
            x.mul_(1.3)


def _assign(model: Any) -> None:
    other = {name: x * 1.2 for name, x in model.model.backbone.blocks.state_dict().items()}
    model.model.backbone.blocks.load_state_dict(other, assign=True)


@pytest.mark.parametrize("change", [_add_hook, _wrap, _replace_data, _train, _assign])
def test_changes_of_the_model_count(change: Any) -> None:
    model, tokens = replaying(), some_tokens(2, 20)
    assert error(model, tokens) < 1e-9
    with torch.no_grad():
        before = model(tokens, use_cache=False).logits
        change(model)
        assert (model(tokens, use_cache=False).logits - before).abs().max() > 1e-3
    assert error(model, tokens) < 1e-9


def test_weights_that_were_moved_are_let_go() -> None:
    model, tokens = replaying(), some_tokens(2, 20)
    _, cache = steps(model, tokens)
    assert cache.home is not None
    storages = [StorageWeakRef(x.untyped_storage()) for x in model.parameters()]
    model.to("meta")
    assert all(storage.expired() for storage in storages)
    assert cache.home is None
    assert cache.state is not None


def test_adapters_that_can_be_off() -> None:
    from peft import LoraConfig, get_peft_model

    model, tokens = replaying(dtype=torch.float32), some_tokens(2, 20)
    assert error(model, tokens) < 1e-4
    settings: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"], "lora_alpha": 64, "init_lora_weights": False}
    adapted: Any = get_peft_model(model, LoraConfig(r=4, **settings)).eval()
    assert error(adapted, tokens) < 1e-4
    with adapted.disable_adapter():
        assert error(adapted, tokens) < 1e-4
    assert error(adapted.merge_and_unload(), tokens) < 1e-4


def test_autocast() -> None:
    """Weights are cast at each replay: they may be others by then. Outside of it nothing is cast."""
    model, tokens = replaying(dtype=torch.float32), some_tokens(2, 20)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            expected = model(tokens, use_cache=False).logits
            found = steps(model, tokens)[0]
        assert found.dtype == expected.dtype == torch.bfloat16
        assert (found - expected).abs().max() < 0.1 * expected.abs().max()
        _train(model)
    assert error(model, tokens) < 1e-3
    assert steps(model, tokens)[0].dtype == torch.float32


def test_dropout_ends_with_training() -> None:
    model, tokens = replaying(residual_dropout=0.5), some_tokens(2, 20)
    model.train()
    steps(model, tokens)
    model.eval()
    assert error(model, tokens) < 1e-9


def test_inference_mode_then_another() -> None:
    model, tokens = replaying(), some_tokens(2, 20)
    with torch.inference_mode():
        _, cache = steps(model, tokens[:, :15])
    steps(model, tokens[:, 15:], cache)
    assert error(model, tokens) < 1e-9


def test_copies_and_files_have_no_graph() -> None:
    model, tokens = replaying(), some_tokens(2, 20)
    steps(model, tokens)
    copied = copy.deepcopy(model)
    _train(model)
    assert error(copied, tokens) < 1e-9
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert error(torch.load(file, weights_only=False), tokens) < 1e-9


# ---- On a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", CONSTANT)
def test_generation_on_a_gpu(mixer: str) -> None:
    """Greedy generation by graphs equals that of full forwards, also when a second batch follows."""
    model = small_model("short_conv", mixer, dtype=torch.float32).cuda()
    for seed in (0, 1):
        tokens = some_tokens(3, 7, seed=seed).cuda()
        generated = model.generate(tokens, max_new_tokens=20, do_sample=False, pad_token_id=0)
        with torch.no_grad():
            for _ in range(20):
                following = model(tokens, use_cache=False).logits[:, -1:].argmax(dim=-1)
                tokens = torch.cat([tokens, following], dim=1)
        assert torch.equal(generated, tokens)


@pytest.mark.gpu
def test_beams_on_a_gpu() -> None:
    model, tokens = small_model(dtype=torch.float32).cuda(), some_tokens(2, 5).cuda()
    options = {"num_beams": 3, "max_new_tokens": 15, "do_sample": False, "pad_token_id": 0}
    with_cache, without = (model.generate(tokens, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(with_cache, without)
