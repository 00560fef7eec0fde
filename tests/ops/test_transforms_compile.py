"""torch.compile(fullgraph=True) and torch.export: forward, backward and state, against eager autograd."""

import io
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves

from rebased.kernels import BASED, REBASED, CosFormer, Kernel, Power
from rebased.ops import KernelState, attention_matrix, initial_state, kernel_attention, kernel_attention_step
from transform_cases import (
    FEATURE_DIM,
    HEAD_DIM,
    KERNELS,
    KEY_HEADS,
    NUM_HEADS,
    OPTIONS,
    assert_same,
    call_arguments,
    coefficients,
    learned,
    looped,
    qkv,
    randn,
    tensors,
    with_grads,
)

pytestmark = [
    # Inductor imports parts of torch that are still written in TorchScript.
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    # Dynamo looks at every input's .grad, and some of ours are not leaves.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    # torch.export.load of torch 2.11 reads weights from bytes.
    pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning"),
]

compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")
"""Dynamo and AOTAutograd trace as for any backend, and no C++ is compiled."""


@pytest.fixture(autouse=True)
def forget_compilations() -> Iterator[None]:
    """Otherwise a test's shapes and kernels count as recompilations of the one before."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def in_two_pieces(q: Tensor, k: Tensor, v: Tensor, *, kernel: Kernel, backend: str) -> Any:
    """A state goes out of one call and into the next."""
    first, state = kernel_attention(q[:, :40], k[:, :40], v[:, :40], kernel, return_state=True, backend=backend)
    rest, state = kernel_attention(
        q[:, 40:], k[:, 40:], v[:, 40:], kernel, state=state, return_state=True, backend=backend
    )
    return torch.cat([first, rest], dim=1), state


# ---- Forward and backward ----


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_compile(kernel_name: str) -> None:
    inputs, run = qkv(seq_len=70), partial(in_two_pieces, kernel=KERNELS[kernel_name])
    have = with_grads(compiled(partial(run, backend="chunked")), *inputs)
    assert_same(have, with_grads(partial(run, backend="reference"), *inputs))


@pytest.mark.parametrize("kernel_name", ["based", "elu+1"])
def test_compile_with_inductor(kernel_name: str) -> None:
    inputs, run = qkv(seq_len=70), partial(in_two_pieces, kernel=KERNELS[kernel_name])
    have = with_grads(torch.compile(partial(run, backend="chunked"), fullgraph=True), *inputs)
    assert_same(have, with_grads(partial(run, backend="reference"), *inputs))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kernel_name", ["learned", "cosformer"])
def test_compile_options(kernel_name: str, options: str) -> None:
    """Everything is an argument of the compiled function: masks, positions, borders, a state, coefficients."""
    kernel = KERNELS.get(kernel_name, BASED)
    arguments = call_arguments(options, kernel, seq_len=70)
    cs = coefficients(NUM_HEADS) if kernel_name == "learned" else ()

    def run(q: Tensor, k: Tensor, v: Tensor, arguments: Any, cs: Any, *, backend: str = "chunked") -> Any:
        mixed = learned(*cs) if cs else kernel
        return kernel_attention(q, k, v, mixed, return_state=True, backend=backend, **arguments)

    inputs = (*qkv(options, seq_len=70), arguments, cs)
    assert_same(with_grads(compiled(run), *inputs), with_grads(partial(run, backend="reference"), *inputs))


def test_compile_with_the_default_backend() -> None:
    """backend="auto" once broke the graph by logging its choice."""
    q, k, v = qkv()
    assert_same(compiled(kernel_attention)(q, k, v), kernel_attention(q, k, v, backend="reference"))


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_compile_step(kernel_name: str) -> None:
    """Token after token, with gradients through all of them."""
    kernel = KERNELS[kernel_name]
    step = compiled(lambda q, k, v, state: kernel_attention_step(q, k, v, state, kernel))

    def decode(q: Tensor, k: Tensor, v: Tensor) -> Any:
        state = initial_state(kernel, q.shape[0], KEY_HEADS, FEATURE_DIM, HEAD_DIM, dtype=torch.float64)
        outs = []
        for t in range(q.shape[1]):
            out, state = step(q[:, t], k[:, t], v[:, t], state)
            outs.append(out)
        return torch.stack(outs, dim=1), state

    inputs = qkv(seq_len=4)
    whole = partial(kernel_attention, kernel=kernel, return_state=True, backend="reference")
    assert_same(with_grads(decode, *inputs), with_grads(whole, *inputs))


def test_compile_step_adapts_to_batch_sizes() -> None:
    run = partial(kernel_attention_step, kernel=BASED)
    step = compiled(run)
    for batch_size in (6, 9, 11):
        q, k, v = (x[:1] * randn(batch_size, 1, 1, 1) for x in qkv())
        _, state = kernel_attention(q, k, v, BASED, return_state=True, backend="reference")
        inputs = (q[:, 0].contiguous(), k[:, 0].contiguous(), v[:, 0].contiguous(), state)
        with torch.compiler.set_stance("fail_on_recompile" if batch_size == 11 else "default"):
            have = with_grads(step, *inputs)
        assert_same(have, with_grads(run, *inputs))


@pytest.mark.slow  # 15 s: with every size a symbol, features are many symbolic slices
def test_compile_step_and_matrix_with_symbols_throughout() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor, state: KernelState) -> Any:
        step = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state, BASED)
        return step, attention_matrix(q, k, BASED)

    inputs = (*qkv(seq_len=13), call_arguments("state", BASED)["state"])
    assert_same(with_grads(compiled(run, dynamic=True), *inputs), with_grads(run, *inputs))


def test_compile_step_inplace() -> None:
    """What decoding runs: the compiled step writes the state it was given."""
    q, k, v = (x[:, 0] for x in qkv())
    _, state = kernel_attention(*qkv(seed=5), BASED, return_state=True)
    expected = kernel_attention_step(q, k, v, state, BASED)
    with torch.no_grad():
        out, same = compiled(partial(kernel_attention_step, kernel=BASED, inplace=True))(q, k, v, state)
    assert_same((out, same), expected)
    assert_same(state, expected[1])


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_compile_matrix(kernel_name: str) -> None:
    run = partial(attention_matrix, kernel=KERNELS[kernel_name])
    q, k, _ = qkv()
    assert_same(with_grads(compiled(run), q, k), with_grads(run, q, k))


def test_compile_one_function_for_many_kernels() -> None:
    """Numbers inside the kernels differ from call to call: dynamo then tries to make symbols of them."""

    def run(q: Tensor, k: Tensor, v: Tensor, kernel: Kernel, *, backend: str = "chunked") -> Any:
        out, state = kernel_attention(q, k, v, kernel, return_state=True, backend=backend)
        step, state = kernel_attention_step(q[:, 0], k[:, 0], v[:, 0], state, kernel)
        return out, step, state, attention_matrix(q, k, kernel)

    together = compiled(run)
    for kernel in (REBASED, BASED, Power(4), CosFormer(64), CosFormer(65)):
        expected = with_grads(partial(run, kernel=kernel, backend="reference"), *qkv())
        assert_same(with_grads(partial(together, kernel=kernel), *qkv()), expected)


def test_compile_under_autocast() -> None:
    """Bit for bit the eager result; the state in float32."""
    inputs = [x.float() for x in qkv(seq_len=70)]

    def run(*inputs: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return in_two_pieces(*inputs, kernel=BASED, backend="chunked")

    have = with_grads(compiled(run), *inputs)
    assert have[0][0].dtype == torch.bfloat16
    assert have[0][1].values.dtype == torch.float32
    assert all(torch.equal(a, b) for a, b in zip(tensors(have), tensors(with_grads(run, *inputs)), strict=True))


# ---- Symbolic shapes ----


LENGTHS = (13, 70, 64, 33, 129)
"""13 is no other axis's size: where two axes of the first call agree, dynamo takes them to be one."""


@pytest.mark.parametrize("kernel_name", ["rebased", "based", "elu+1", "cosformer"])
def test_compile_dynamic(kernel_name: str) -> None:
    """One graph serves every length, forward and backward, with a state on both sides."""
    kernel = KERNELS[kernel_name]

    def run(q: Tensor, k: Tensor, v: Tensor, state: KernelState, *, backend: str = "chunked") -> Any:
        return kernel_attention(q, k, v, kernel, state=state, return_state=True, backend=backend)

    dynamic = compiled(run, dynamic=True)
    for seq_len in LENGTHS:
        inputs = (*qkv(seq_len=seq_len), call_arguments("state", kernel)["state"])
        with torch.compiler.set_stance("default" if seq_len == LENGTHS[0] else "fail_on_recompile"):
            have = with_grads(dynamic, *inputs)
        assert_same(have, with_grads(partial(run, backend="reference"), *inputs))


def test_compile_adapts_to_lengths() -> None:
    """Without being told, dynamo sees at the second length that it varies, and compiles no more."""
    run = partial(kernel_attention, kernel=BASED, return_state=True)
    adaptive = compiled(partial(run, backend="chunked"))
    for seq_len in LENGTHS:
        inputs = qkv(seq_len=seq_len)
        with torch.compiler.set_stance("default" if seq_len in LENGTHS[:2] else "fail_on_recompile"):
            have = with_grads(adaptive, *inputs)
        assert_same(have, with_grads(partial(run, backend="reference"), *inputs))


@pytest.mark.parametrize("options", ["at", "packed", "key_mask"])
def test_compile_dynamic_options(options: str) -> None:
    """The number of queries and of packed sequences may vary as well."""

    def run(q: Tensor, k: Tensor, v: Tensor, arguments: Any, *, backend: str = "chunked") -> Any:
        return kernel_attention(q, k, v, BASED, return_state=True, backend=backend, **arguments)

    dynamic = compiled(run, dynamic=True)
    for seq_len in LENGTHS[:3]:
        arguments = call_arguments(options, BASED, seq_len=seq_len)
        inputs = qkv(options, seq_len=seq_len)
        if options == "packed":
            arguments["cu_seqlens"] = torch.tensor([0, *range(7, seq_len), seq_len])
        if options == "at":
            arguments["at"] = torch.arange(seq_len).repeat(2, 2)
            inputs = (inputs[0][:, :1] * randn(1, 2 * seq_len, 1, 1), *inputs[1:])
        with torch.compiler.set_stance("default" if seq_len == LENGTHS[0] else "fail_on_recompile"):
            have = with_grads(partial(dynamic, arguments=arguments), *inputs)
        assert_same(have, with_grads(partial(run, arguments=arguments, backend="reference"), *inputs))


# ---- With torch.func ----


def replica_loss(parameters: dict[str, Tensor], x: Tensor, *, backend: str = "chunked") -> Tensor:
    """A mixer in small: projections, learnable coefficients, attention."""
    q = (x @ parameters["q"]).unflatten(-1, (NUM_HEADS, FEATURE_DIM))
    k = (x @ parameters["k"]).unflatten(-1, (KEY_HEADS, FEATURE_DIM))
    v = (x @ parameters["v"]).unflatten(-1, (KEY_HEADS, HEAD_DIM))
    kernel = learned(*(parameters[f"c{degree}"] for degree in range(3)))
    return kernel_attention(q, k, v, kernel, backend=backend).square().mean()


def replica_parameters(num_replicas: int, width: int) -> dict[str, Tensor]:
    c0, c1, c2 = coefficients(num_replicas, NUM_HEADS)
    return {
        "q": randn(num_replicas, width, NUM_HEADS * FEATURE_DIM, seed=1),
        "k": randn(num_replicas, width, KEY_HEADS * FEATURE_DIM, seed=2),
        "v": randn(num_replicas, width, KEY_HEADS * HEAD_DIM, seed=3),
        "c0": c0[:, 0],
        "c1": c1,
        "c2": c2,
    }


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_vmap_of_a_loss_with_autograd_outside(backend: str) -> None:
    """How replicas train: parameters stacked, one compiled call, one backward."""
    parameters, x = replica_parameters(3, 6), randn(3, 2, 70, 6)
    losses = torch.compile(vmap(replica_loss), fullgraph=True, backend=backend)
    expected = with_grads(partial(looped, partial(replica_loss, backend="reference"), (0, 0)), parameters, x)
    assert_same(with_grads(losses, parameters, x), expected)


def test_compile_func_grad() -> None:
    """With grad, and vmap(grad), inside the compiled function."""
    parameters, x = replica_parameters(3, 6), randn(3, 2, 20, 6)

    def by_autograd(parameters: dict[str, Tensor], x: Tensor) -> Any:
        leaves = {name: p.detach().requires_grad_() for name, p in parameters.items()}
        loss = replica_loss(leaves, x, backend="reference")
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    expected = looped(by_autograd, (0, 0), parameters, x)
    assert_same(compiled(vmap(grad(replica_loss)))(parameters, x), expected)
    first = {name: p[0] for name, p in parameters.items()}
    assert_same(compiled(grad(replica_loss))(first, x[0]), {name: g[0] for name, g in expected.items()})


# ---- Checks of values ----


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_graphs_check_values(backend: str) -> None:
    """A graph compiled with good positions refuses bad ones, and the message is the eager one."""
    q, k, v = qkv("at")
    run = torch.compile(lambda q, at: kernel_attention(q, k, v, at=at), fullgraph=True, backend=backend)
    good = call_arguments("at", REBASED)["at"]
    assert_same(run(q, good), kernel_attention(q, k, v, at=good))
    for bad in (good - 7, good + 7):
        with pytest.raises(ValueError, match=r"at reaches from -?\d+ to -?\d+; positions must be in 0 \.\. 6"):
            run(q, bad)


def test_compiled_graphs_check_borders() -> None:
    q, k, v = qkv("packed")
    run = compiled(lambda borders: kernel_attention(q, k, v, cu_seqlens=borders))
    run(torch.tensor([0, 3, 7]))
    with pytest.raises(ValueError, match="must not decrease"):
        run(torch.tensor([0, 8, 7]))
    with pytest.raises(ValueError, match="end with 7"):
        run(torch.tensor([0, 3, 6]))


# ---- Export ----


class Mixer(nn.Module):
    """A layer with a projection and, if asked, learnable coefficients; a state in and out."""

    def __init__(self, kernel: Kernel, *, learnable: bool = False) -> None:
        super().__init__()
        self.kernel = kernel
        self.backend = "chunked"
        self.project = nn.Linear(FEATURE_DIM, FEATURE_DIM, dtype=torch.float64)
        with torch.no_grad():
            self.project.weight.copy_(randn(FEATURE_DIM, FEATURE_DIM))
        self.coefficients = nn.ParameterList(c.clone() for c in coefficients(NUM_HEADS) if learnable)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, state: KernelState | None = None) -> Any:
        kernel = learned(*self.coefficients) if self.coefficients else self.kernel
        return kernel_attention(self.project(q), k, v, kernel, state=state, return_state=True, backend=self.backend)


def exported(mixer: Mixer, inputs: tuple[Any, ...], *, strict: bool) -> torch.export.ExportedProgram:
    """With a length that may vary."""
    length = torch.export.Dim("length", min=2, max=128)
    shapes: tuple[Any, ...] = ({1: length}, {1: length}, {1: length})
    shapes += tuple([None] * len(tree_leaves(state)) for state in inputs[3:])
    return torch.export.export(mixer, inputs, dynamic_shapes=shapes, strict=strict)


def reloaded(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    with torch.serialization.safe_globals([KernelState]):  # among the example inputs
        return torch.export.load(file)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("kernel_name", ["learned", "cosformer"])
def test_export(kernel_name: str, with_state: bool, strict: bool) -> None:
    """The exported program gives eager's results at other lengths, also when saved and loaded."""
    kernel = KERNELS.get(kernel_name, BASED)
    mixer = Mixer(kernel, learnable=kernel_name == "learned")
    states = (call_arguments("state", kernel)["state"],) if with_state else ()
    program = exported(mixer, (*qkv(seq_len=9), *states), strict=strict)
    mixer.backend = "reference"
    for module in (program.module(), reloaded(program).module()):
        for seq_len in (5, 70):
            inputs = (*qkv(seq_len=seq_len), *states)
            have = module(*inputs)
            assert isinstance(have[1], KernelState)
            assert_same(have, mixer(*inputs))


def test_export_is_differentiable() -> None:
    mixer = Mixer(BASED)
    inputs = qkv(seq_len=9)
    module = exported(mixer, inputs, strict=False).module()
    mixer.backend = "reference"
    assert_same(with_grads(module, *inputs), with_grads(mixer, *inputs))


class Decoder(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, state: KernelState) -> Any:
        return kernel_attention_step(q, k, v, state, BASED)


def test_export_step() -> None:
    """A decoder for a device without Python: one program, called token after token."""
    q, k, v = qkv()
    state = initial_state(BASED, 2, KEY_HEADS, FEATURE_DIM, HEAD_DIM, dtype=torch.float64)
    program = torch.export.export(Decoder(), (q[:, 0], k[:, 0], v[:, 0], state))
    decoder = reloaded(program).module()
    outs = []
    for t in range(q.shape[1]):
        out, state = decoder(q[:, t], k[:, t], v[:, t], state)
        outs.append(out)
    expected = kernel_attention(q, k, v, BASED, return_state=True, backend="reference")
    assert_same((torch.stack(outs, dim=1), state), expected)
