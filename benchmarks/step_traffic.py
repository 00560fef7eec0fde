"""What a compiled step of recall training reads and writes, kernel by kernel, as its compiler plans it for a GPU.

    python benchmarks/step_traffic.py based rebased --seq-len 2048 --num-pairs 32 --d-model 32 --replicas 8 --kernels

No GPU is needed: the step is traced on a CPU and planned as if for an H200, but for the machine code. A buffer counts
whole for each kernel that reads or writes it: caches are left out of account, a kernel that gathers a few rows of a
buffer counts too many, and an operator of ours which goes through its arguments twice too few. It says what to look at,
and what a change saves; how long a step takes, `rebased bench mqar` and ``profile_steps.py`` say.

It uses inner parts of the compiler, of torch 2.13.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from recall_step import add_step_options, recall_runs
from torch import fx

from rebased.training.replicas import Replicas
from rebased.training.stacked import compiler_options

LEAST_SHOWN = 0.01
"""Of all bytes of a step: kernels with fewer are left out of the list."""
H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=140 << 30,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    warp_size=32,
    gcnArchName="",
)
CUDA = torch.device("cuda", 0)


@dataclass(frozen=True)
class Graph:
    """One direction of a step, as the compiler is given it."""

    module: fx.GraphModule
    inputs: list[Any]
    is_backward: bool


@dataclass(frozen=True)
class Kernel:
    """What the plan has of it."""

    name: str
    reads: dict[str, int]
    writes: dict[str, int]
    """Bytes by buffer."""

    @property
    def num_bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())


class _TracedError(Exception):
    """Not an error: there is no more to trace."""


def trace(replicas: Replicas) -> list[Graph]:
    """Forward and backward, of a step that is broken off before it is computed."""
    from torch._inductor import compile_fx
    from torch._inductor.output_code import MockFXGraphCacheOutput

    graphs: list[Graph] = []

    def capture(_: Any, module: fx.GraphModule, inputs: list[Any], __: Any, options: dict[str, Any]) -> Any:
        graphs.append(Graph(module, list(inputs), bool(options.get("is_backward"))))
        if graphs[-1].is_backward:
            raise _TracedError
        return MockFXGraphCacheOutput(module)

    with (
        mock.patch.object(compile_fx._InProcessFxCompile, "codegen_and_compile", capture),
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False),
        torch._inductor.config.patch(fx_graph_cache=False),
    ):
        try:
            replicas.train_epoch()
        except Exception:
            if len(graphs) != 2:
                raise
    return graphs


@contextmanager
def an_absent_gpu() -> Iterator[None]:
    """What the compiler asks about a GPU is answered."""
    import torch._inductor.fx_passes.reinplace as reinplace
    from torch._dynamo.device_interface import CudaInterface
    from torch.utils import _triton

    def always(value: Any) -> Any:
        return lambda *_, **__: value

    exists = {"is_available": True, "current_device": 0, "get_device_properties": H200}
    answers = {
        torch.cuda: exists | {"device_count": 1, "get_device_capability": (9, 0)},
        CudaInterface: exists | {"get_compute_capability": 90},
        CudaInterface.Worker: {"current_device": 0, "get_device_properties": H200},
        _triton: {"triton_hash_with_backend": ""},
    }
    with ExitStack() as stack:
        for owner, values in answers.items():
            for name, value in values.items():
                new = staticmethod(always(value)) if isinstance(owner, type) else always(value)
                stack.enter_context(mock.patch.object(owner, name, new))
        for module in [x for name, x in sys.modules.items() if name.startswith("torch.")]:
            if "has_triton" in vars(module):
                stack.enter_context(mock.patch.object(module, "has_triton", always(True)))
        # It tries copies, for which even tensors without memory need CUDA.
        shape_only = mock.patch.object(reinplace, "_inplace_generalized_scatter", lambda x, *_: x.clone())
        stack.enter_context(shape_only)
        yield


def plan(graph: Graph, num_replicas: int) -> list[Kernel]:
    """The kernels that the compiler makes of it, in their order."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch._inductor import config
    from torch._inductor.compile_fx import record_original_output_strides
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.passes.fake_tensor_prop import FakeTensorProp

    module, mode = graph.module, detect_fake_mode(graph.inputs)
    assert mode is not None, "graphs are traced with tensors that have no memory"
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = node.kwargs | {"device": CUDA}
    module.recompile()
    with (
        an_absent_gpu(),
        enable_python_dispatcher(),
        V.set_fake_mode(mode),
        config.patch(compiler_options() | {"compile_threads": 1}),
    ):
        with mode:
            inputs = [
                torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=CUDA)
                if isinstance(x, torch.Tensor)
                else x
                for x in graph.inputs
            ]
        view_to_reshape(module)
        FakeTensorProp(module, mode=mode).propagate(*inputs)
        record_original_output_strides(module)
        post_grad_passes(module, is_inference=False)
        lowered = GraphLowering(
            module, example_inputs=inputs, shape_env=mode.shape_env, is_backward=graph.is_backward, graph_id=0
        )
        with V.set_graph_handler(lowered), V.set_extern_kernel_nodes([]), V.set_debug_handler(DebugContext()):
            lowered.run(*inputs)
            lowered.codegen()
            return _kernels(lowered, num_replicas)


def _kernels(lowered: Any, num_replicas: int) -> list[Kernel]:
    nodes = lowered.scheduler.nodes
    outputs = [{buffer.get_name() for buffer in node.get_outputs()} for node in nodes]
    reads = [{access.name for access in node.read_writes.reads} - own for node, own in zip(nodes, outputs, strict=True)]
    needed = set(lowered.get_output_names()).union(*reads)  # the rest never leaves its kernel

    def measured(names: set[str]) -> dict[str, int]:
        found = {x: _num_bytes(lowered, x, num_replicas) for x in sorted(names & needed)}
        return {x: size for x, size in found.items() if size}

    return [
        Kernel(_name(node), measured(read), measured(own | {access.name for access in node.read_writes.writes}))
        for node, read, own in zip(nodes, reads, outputs, strict=True)
    ]


def _name(node: Any) -> str:
    return getattr(node.node, "python_kernel_name", None) or ", ".join(sorted(_operators(node)))


def _operators(node: Any) -> set[str]:
    origins = (origin for part in node.get_nodes() for origin in getattr(part.node, "origins", ()))
    return {getattr(origin.target, "_opname", str(origin.target)) for origin in origins}


def _num_bytes(lowered: Any, name: str, num_replicas: int) -> int:
    """Of its memory, which an expanded one has little of; 0 for what is no buffer, such as a pair of them."""
    buffer = lowered.try_get_buffer(name)
    try:
        axes = zip(buffer.get_size(), buffer.get_stride(), strict=True)
        sizes = [int(_with_replicas(size, num_replicas)) for size, stride in axes if stride != 0]
        return math.prod(sizes) * int(buffer.get_dtype().itemsize)
    except (AttributeError, NotImplementedError):
        return 0


def _with_replicas(size: Any, num_replicas: int) -> Any:
    """Their number is a symbol of the graph, the only one."""
    return size.subs(dict.fromkeys(size.free_symbols, num_replicas)) if hasattr(size, "free_symbols") else size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_step_options(parser)
    parser.add_argument("--kernels", action="store_true", help="name those that move most")
    options = parser.parse_args()
    for stack in options.stacks:
        show(stack, options)


def show(stack: str, options: argparse.Namespace) -> None:
    runs = [run.but(num_train=run.batch_size, num_test=8) for run in recall_runs(stack, options)]
    replicas = Replicas(runs, device="cpu", compile=True)
    num_tokens = len(runs) * runs[0].batch_size * options.seq_len
    kernels = {graph.is_backward: plan(graph, options.replicas) for graph in trace(replicas)}
    total = sum(kernel.num_bytes for each in kernels.values() for kernel in each)
    forward, backward = (sum(kernel.num_bytes for kernel in kernels[key]) / num_tokens for key in (False, True))
    print(f"{stack}: {total / num_tokens:,.0f} bytes a token, {forward:,.0f} forward and {backward:,.0f} backward")
    if options.kernels:
        for kernel in (*kernels[False], *kernels[True]):
            if kernel.num_bytes >= LEAST_SHOWN * total:
                read, written = (sum(x.values()) / num_tokens for x in (kernel.reads, kernel.writes))
                print(f"  {read:8,.0f} read {written:8,.0f} written  {kernel.name[:80]}")


if __name__ == "__main__":
    main()
