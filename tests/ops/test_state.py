"""The state: its size, its precision, what it counts, how it moves, and that it survives a file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils import _pytree

from rebased.kernels import BASED, ELU_PLUS_ONE, REBASED, RFA, CosFormer, Kernel, Power
from rebased.ops import KernelState, initial_state, kernel_attention, kernel_attention_step

BACKENDS = ["reference", "chunked"]
KERNELS = {
    "rebased": REBASED,
    "based": BASED,
    "power 4": Power(4),
    "elu+1": ELU_PLUS_ONE,
    "cosformer": CosFormer(50),
    "rfa": RFA(5, 4),
}
H, HK, F, D = 4, 2, 5, 3


def tokens(
    batch_size: int, seq_len: int, *, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (H, F), (HK, F), (HK, D)
    return tuple(
        torch.randn(batch_size, seq_len, *s, dtype=torch.float64, generator=generator).to(dtype) for s in shapes
    )


def state_after(
    batch_size: int,
    seq_len: int,
    kernel: Kernel = REBASED,
    *,
    dtype: torch.dtype = torch.float64,
    backend: str = "auto",
) -> KernelState:
    q, k, v = tokens(batch_size, seq_len, dtype=dtype)
    return kernel_attention(q, k, v, kernel, return_state=True, backend=backend)[1]


def assert_equal(actual: KernelState, expected: KernelState) -> None:
    assert actual.kernel == expected.kernel
    found, wanted = tensors_of(actual), tensors_of(expected)
    assert found.keys() == wanted.keys()
    for name, x in found.items():
        assert x.dtype == wanted[name].dtype
        assert torch.equal(x, wanted[name]), name


def tensors_of(state: KernelState) -> dict[str, Tensor]:
    return {name: x for name, x in vars(state).items() if isinstance(x, Tensor)}


# ---- What it is ----


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_is_the_sum_over_keys(kernel: Kernel, backend: str) -> None:
    q, k, v = tokens(2, 9)
    _, state = kernel_attention(q, k, v, kernel, return_state=True, backend=backend)
    features = kernel.key_features(k, torch.arange(9))
    torch.testing.assert_close(state.values, torch.einsum("bshe,bshd->bhed", features, v))
    torch.testing.assert_close(state.normalizer, features.sum(dim=1))
    assert state.count.tolist() == [9, 9]
    assert state.kernel == kernel.name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_of_no_tokens_is_the_initial_one(kernel: Kernel, backend: str) -> None:
    expected = initial_state(kernel, 2, HK, F, D, dtype=torch.float64)
    assert_equal(state_after(2, 0, kernel, backend=backend), expected)
    assert expected.values.shape == (2, HK, kernel.num_features(F), D)
    assert not any(x.any() for x in (expected.values, expected.normalizer, expected.count))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_the_initial_state_changes_nothing(kernel: Kernel, backend: str) -> None:
    q, k, v = tokens(2, 9)
    begun = initial_state(kernel, 2, HK, F, D, dtype=torch.float64)
    expected, expected_state = kernel_attention(q, k, v, kernel, return_state=True, backend=backend)
    out, state = kernel_attention(q, k, v, kernel, state=begun, return_state=True, backend=backend)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(state.values, expected_state.values)
    assert state.count.tolist() == expected_state.count.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_size_does_not_depend_on_length(backend: str) -> None:
    sizes = {state_after(2, seq_len, backend=backend).nbytes for seq_len in (0, 1, 2, 65, 300)}
    assert sizes == {(2 * HK * 15 * (D + 1) + 2) * 8}  # 15 = F(F+1)/2 features, D values and a normaliser; and a count


def test_float32_sums_carry_a_16_bit_residual() -> None:
    state = initial_state(BASED, 3, 2, 16, 64)
    assert state.nbytes == 3 * 2 * 153 * (64 + 1) * (4 + 2) + 3 * 8


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_precision(backend: str, dtype: torch.dtype, expected: torch.dtype) -> None:
    q, k, v = tokens(1, 70, dtype=dtype)
    out, state = kernel_attention(q, k, v, return_state=True, backend=backend)
    last, stepped = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state)
    assert out.dtype == last.dtype == dtype
    for result in (state, stepped):
        assert result.values.dtype == result.normalizer.dtype == expected
        assert result.count.dtype == torch.int64


def test_low_precision_inputs_are_summed_in_float32() -> None:
    """300 tokens of one key: a sum kept in bfloat16 would stop growing at 256."""
    q, k, v = (torch.ones(1, 300, 1, 1, dtype=torch.bfloat16) for _ in range(3))
    _, state = kernel_attention(q, k, v, return_state=True)
    assert state.normalizer.item() == state.values.item() == 300
    for _ in range(3):
        _, state = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state)
    assert state.normalizer.item() == state.values.item() == 303


# ---- What it counts ----


@pytest.mark.parametrize("backend", BACKENDS)
def test_counts_real_tokens(backend: str) -> None:
    q, k, v = tokens(3, 4)
    key_mask = torch.tensor([[True, True, True, True], [False, False, True, True], [False, False, False, False]])
    _, state = kernel_attention(q, k, v, key_mask=key_mask, return_state=True, backend=backend)
    assert state.count.tolist() == [4, 2, 0]
    _, state = kernel_attention(q, k, v, key_mask=key_mask, state=state, return_state=True, backend=backend)
    assert state.count.tolist() == [8, 4, 0]
    _, state = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state, key_mask=torch.tensor([True, False, True]))
    assert state.count.tolist() == [9, 4, 1]
    assert not state_is_zero(state)[1]


def state_is_zero(state: KernelState) -> list[bool]:
    return [not bool(row.any()) for row in state.values]


@pytest.mark.parametrize("backend", BACKENDS)
def test_counts_packed_sequences_apart(backend: str) -> None:
    q, k, v = tokens(1, 7)
    cu_seqlens = torch.tensor([0, 3, 3, 7])
    _, state = kernel_attention(q, k, v, cu_seqlens=cu_seqlens, return_state=True, backend=backend)
    assert state.count.tolist() == [3, 0, 4]
    assert state_is_zero(state) == [False, True, False]
    key_mask = torch.tensor([[True, False, True, False, False, False, False]])
    _, state = kernel_attention(
        q, k, v, cu_seqlens=cu_seqlens, key_mask=key_mask, state=state, return_state=True, backend=backend
    )
    assert state.count.tolist() == [5, 0, 4]


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_tokens_leave_no_trace(backend: str) -> None:
    q, k, v = tokens(1, 6)
    padded_k, padded_v = (torch.cat([torch.full_like(x[:, :2], torch.nan), x], dim=1) for x in (k, v))
    key_mask = torch.tensor([[False] * 2 + [True] * 6])
    padded_q = torch.cat([q[:, :2], q], dim=1)
    _, state = kernel_attention(padded_q, padded_k, padded_v, key_mask=key_mask, return_state=True, backend=backend)
    expected = state_after(1, 6, backend=backend)
    torch.testing.assert_close(state.values, expected.values)
    torch.testing.assert_close(state.normalizer, expected.normalizer)


# ---- How it moves ----


def test_to_moves_every_tensor() -> None:
    state = state_after(2, 4, dtype=torch.float32)
    moved = state.to("meta")
    assert moved.kernel == REBASED.name
    assert {name: x.device.type for name, x in tensors_of(moved).items()} == dict.fromkeys(tensors_of(state), "meta")


def test_detach_cuts_gradients_and_shares_memory() -> None:
    q, k, v = tokens(1, 4)
    _, state = kernel_attention(q, k.requires_grad_(), v, return_state=True)
    detached = state.detach()
    assert state.values.requires_grad
    assert state.normalizer.requires_grad
    assert not detached.values.requires_grad
    assert not detached.normalizer.requires_grad
    assert detached.values.data_ptr() == state.values.data_ptr()
    assert_equal(detached, state)


def test_clone_keeps_gradients_and_shares_nothing() -> None:
    q, k, v = tokens(1, 4)
    _, state = kernel_attention(q, k.requires_grad_(), v, return_state=True)
    copy = state.clone()
    assert_equal(copy, state)
    assert copy.values.requires_grad
    for name, x in tensors_of(copy).items():
        assert x.data_ptr() != getattr(state, name).data_ptr()


def test_reorder_picks_and_repeats_sequences() -> None:
    q, k, v = tokens(3, 4)
    key_mask = torch.tensor([[True] * 4, [False] + [True] * 3, [False] * 2 + [True] * 2])
    _, state = kernel_attention(q, k, v, key_mask=key_mask, return_state=True)
    index = torch.tensor([2, 0, 0, 2])
    beams = state.reorder(index)
    assert beams.count.tolist() == [2, 4, 4, 2]
    assert torch.equal(beams.values, state.values[index])
    assert torch.equal(beams.normalizer, state.normalizer[index])
    out, _ = kernel_attention_step(q[index, 0], k[index, 0], v[index, 0], beams)
    expected, _ = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state)
    torch.testing.assert_close(out, expected[index])


both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@both_precisions
def test_is_a_pytree(dtype: torch.dtype) -> None:
    state = state_after(2, 4, dtype=dtype)
    leaves, spec = _pytree.tree_flatten({"state": state})
    assert {id(x) for x in leaves} == {id(x) for x in tensors_of(state).values()}
    assert_equal(_pytree.tree_unflatten(leaves, spec)["state"], state)
    doubled = _pytree.tree_map(lambda x: 2 * x, state)
    assert torch.equal(doubled.normalizer, 2 * state.normalizer)
    assert doubled.count.tolist() == [8, 8]
    other = _pytree.tree_structure({"state": state_after(2, 4, BASED, dtype=dtype)})
    assert spec != other  # the kernel's name is part of the structure, so a compiled graph guards on it


@both_precisions
def test_passes_through_vmap(dtype: torch.dtype) -> None:
    q, k, v = (torch.stack([x, -2 * x]) for x in tokens(1, 4, dtype=dtype))
    state = torch.vmap(lambda q, k, v: kernel_attention(q, k, v, return_state=True)[1])(q, k, v)
    assert state.values.shape == (2, 1, HK, 15, D)
    assert state.count.tolist() == [[4], [4]]
    torch.testing.assert_close(state.normalizer[1], 4 * state.normalizer[0])
    step = torch.vmap(lambda q, k, v, state: kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state)[0])
    out, _ = kernel_attention_step(*(x[1, :, 0] for x in (q, k, v)), _pytree.tree_map(lambda x: x[1], state))
    torch.testing.assert_close(step(q, k, v, state)[1], out)


@both_precisions
def test_inplace_step_writes_the_given_state(dtype: torch.dtype) -> None:
    q, k, v = tokens(2, 1, dtype=dtype)
    state = state_after(2, 4, dtype=dtype)
    memory = {name: x.data_ptr() for name, x in tensors_of(state).items()}
    expected_out, expected = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state)
    out, same = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state, inplace=True)
    assert same is state
    assert {name: x.data_ptr() for name, x in tensors_of(state).items()} == memory
    assert torch.equal(out, expected_out)
    assert_equal(state, expected)


def test_a_step_that_is_not_inplace_leaves_its_state_alone() -> None:
    q, k, v = tokens(2, 1)
    state = state_after(2, 4)
    before = state.clone()
    kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state)
    assert_equal(state, before)


def through_a_file(state: KernelState, folder: Path) -> KernelState:
    state.save(folder / "state.safetensors")
    return KernelState.load(folder / "state.safetensors")


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(lambda state, folder: state, id="not at all"),
        pytest.param(lambda state, folder: state.clone(), id="clone"),
        pytest.param(lambda state, folder: state.detach(), id="detach"),
        pytest.param(lambda state, folder: state.to("cpu"), id="to"),
        pytest.param(lambda state, folder: state.reorder(torch.tensor([0])), id="reorder"),
        pytest.param(lambda state, folder: _pytree.tree_map(torch.clone, state), id="tree_map"),
        pytest.param(through_a_file, id="file"),
    ],
)
@pytest.mark.parametrize("inplace", [False, True], ids=["new state", "inplace"])
def test_what_rounding_drops_comes_along(
    tmp_path: Path, move: Callable[[KernelState, Path], KernelState], inplace: bool
) -> None:
    """Twice 1 added to 2²⁴, the first number that float32 cannot add 1 to."""
    one = torch.ones(1, 1, 1)
    values, normalizer = torch.full((1, 1, 1, 1), 2.0**24), torch.full((1, 1, 1), 2.0**24)
    state = KernelState.of_sums(REBASED.name, values, normalizer, torch.tensor([1]))
    _, state = kernel_attention_step(one, one, one, state, inplace=inplace)
    assert state.values.item() == state.normalizer.item() == 2**24
    _, state = kernel_attention_step(one, one, one, move(state, tmp_path), inplace=inplace)
    assert state.values.item() == state.normalizer.item() == 2**24 + 2


# ---- How it is kept ----


@both_precisions
@pytest.mark.parametrize("as_path", [Path, str], ids=["Path", "str"])
def test_survives_a_file(tmp_path: Path, dtype: torch.dtype, as_path: type) -> None:
    state = state_after(2, 4, BASED, dtype=dtype)
    path = as_path(tmp_path / "state.safetensors")
    state.save(path)
    assert_equal(KernelState.load(path), state)


def test_saving_takes_any_layout_and_gradients(tmp_path: Path) -> None:
    q, k, v = tokens(2, 4)
    _, state = kernel_attention(q, k.requires_grad_(), v, return_state=True)
    turned = KernelState(state.values.mT.contiguous().mT, state.normalizer, state.count, kernel=state.kernel)
    assert not turned.values.is_contiguous()
    turned.save(tmp_path / "state.safetensors")
    loaded = KernelState.load(tmp_path / "state.safetensors")
    assert_equal(loaded, state)
    assert not loaded.values.requires_grad


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_goes_on_from_a_file(tmp_path: Path, kernel: Kernel, backend: str) -> None:
    q, k, v = tokens(2, 11)
    whole, final = kernel_attention(q, k, v, kernel, return_state=True, backend=backend)
    path = tmp_path / "state.safetensors"
    kernel_attention(q[:, :7], k[:, :7], v[:, :7], kernel, return_state=True, backend=backend)[1].save(path)
    out, state = kernel_attention(
        q[:, 7:], k[:, 7:], v[:, 7:], kernel, state=KernelState.load(path), return_state=True, backend=backend
    )
    torch.testing.assert_close(out, whole[:, 7:])
    torch.testing.assert_close(state.values, final.values)
    assert state.count.tolist() == [11, 11]
    first, _ = kernel_attention_step(q[:, 7], k[:, 7], v[:, 7], KernelState.load(path), kernel)
    torch.testing.assert_close(first, whole[:, 7])


def test_a_loaded_state_still_knows_its_kernel(tmp_path: Path) -> None:
    state_after(1, 4, BASED).save(tmp_path / "state.safetensors")
    q, k, v = tokens(1, 4)
    with pytest.raises(ValueError, match=r"^state was made by the kernel 'monomials of degree 0, 1, 2'"):
        kernel_attention(q, k, v, REBASED, state=KernelState.load(tmp_path / "state.safetensors"))


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        pytest.param({"weight": torch.zeros(2)}, {"kernel": "x"}, id="other tensors"),
        pytest.param({name: torch.zeros(2) for name in ("values", "normalizer", "count")}, None, id="no kernel"),
        pytest.param({name: torch.zeros(2) for name in ("values", "normalizer")}, {"kernel": "x"}, id="one missing"),
    ],
)
def test_another_safetensors_file_is_refused(
    tmp_path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None
) -> None:
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata=metadata)
    with pytest.raises(ValueError, match=r"^path='.*model\.safetensors' holds \[.*\], not a kernel attention state"):
        KernelState.load(path)


@pytest.mark.parametrize("content", [b"", b"not safetensors at all"], ids=["empty", "text"])
def test_another_kind_of_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^path='.*notes\.txt'"):
        KernelState.load(path)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        KernelState.load(tmp_path / "none.safetensors")
