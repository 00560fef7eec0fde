"""Attention with any kernel, as a layer: projections around `rebased.ops.kernel_attention`."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rebased.checks import check_integer
from rebased.kernels import Kernel, Polynomial, TermKernel, check_kernel
from rebased.layers.checks import check_divides
from rebased.layers.kernel_names import make_kernel
from rebased.layers.mixer import Mixer
from rebased.layers.rows import pick
from rebased.ops import KernelState, attention_matrix, initial_state, kernel_attention, kernel_attention_step
from rebased.ops.backends import BACKENDS, check_name, choose_backend
from rebased.ops.checks import check_eps
from rebased.ops.dtypes import sums_dtype

__all__ = ["KernelAttention", "stepping_in_place"]

_IN_PLACE: ContextVar[bool] = ContextVar("in_place", default=False)


@contextmanager
def stepping_in_place() -> Iterator[None]:
    """In here a step overwrites the state that it is given. For decoding loops that own the state, not for training."""
    token = _IN_PLACE.set(True)
    try:
        yield
    finally:
        _IN_PLACE.reset(token)


def _steps_in_place() -> bool:
    return not torch.compiler.is_compiling() and _IN_PLACE.get()


class KernelAttention(Mixer):
    """Kernel attention with ``num_heads`` heads, queries and keys of ``feature_dim``, values of ``head_dim``.

    ``head_dim`` is d_model // num_heads unless given, so the values' total width need not be d_model. ``kernel`` is a
    name of `KERNELS`, with ``kernel_options``, or a `Kernel`. With ``learn_coefficients`` the coefficients of "based"
    or "rebased", as those of c0 + c1·s + c2·s², are learned, one of each per head; they may become negative.
    """

    state_type = KernelState
    takes_gaps = True

    def __init__(
        self,
        d_model: int,
        *,
        kernel: str | Kernel = "elu+1",
        kernel_options: dict[str, Any] | None = None,
        num_heads: int = 12,
        num_key_heads: int | None = None,
        feature_dim: int = 16,
        head_dim: int | None = None,
        learn_coefficients: bool = False,
        eps: float = 1e-12,
        backend: str = "auto",
    ) -> None:
        super().__init__(d_model)
        num_key_heads = num_heads if num_key_heads is None else num_key_heads
        for name, size in {"num_heads": num_heads, "num_key_heads": num_key_heads, "feature_dim": feature_dim}.items():
            check_integer(name, size)
        check_divides("num_key_heads", num_key_heads, "num_heads", num_heads)
        if head_dim is None:
            if d_model < num_heads:
                raise ValueError(f"num_heads={num_heads} must be at most d_model={d_model} unless head_dim is given")
            head_dim = d_model // num_heads
        check_integer("head_dim", head_dim)
        check_name(backend, BACKENDS)
        check_eps(eps)
        self.num_heads, self.num_key_heads = num_heads, num_key_heads
        self.feature_dim, self.head_dim = feature_dim, head_dim
        self.eps, self.backend = eps, backend
        if isinstance(kernel, str):
            kernel = make_kernel(kernel, feature_dim, kernel_options or {})
        elif kernel_options is not None:
            raise ValueError("kernel_options belong to a kernel's name, and kernel is a Kernel itself")
        check_kernel(kernel)
        _check_constant(kernel)
        self.fixed_kernel = kernel
        self.coefficients = None
        if learn_coefficients:
            _check_polynomial(kernel)
            self.coefficients = nn.Parameter(torch.empty(3, num_heads))
        self.q_proj = nn.Linear(d_model, num_heads * feature_dim, bias=False)
        self.k_proj = nn.Linear(d_model, num_key_heads * feature_dim, bias=False)
        self.v_proj = nn.Linear(d_model, num_key_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, d_model, bias=False)
        self._reset_coefficients()

    def reset_parameters(self) -> None:
        self._reset_coefficients()

    def _reset_coefficients(self) -> None:
        """They start at the kernel's own."""
        if self.coefficients is not None:
            assert isinstance(self.fixed_kernel, Polynomial)
            given = dict(zip(self.fixed_kernel.degrees, self.fixed_kernel.terms, strict=True))
            with torch.no_grad():
                for degree, row in enumerate(self.coefficients):
                    row.copy_(torch.as_tensor(given.get(degree, 0.0)))

    def extra_repr(self) -> str:
        return f"kernel={self.kernel!r}, {super().extra_repr()}"

    @property
    def kernel(self) -> Kernel:
        return self.fixed_kernel if self.coefficients is None else Polynomial(*self.coefficients.unbind())

    @property
    def max_len(self) -> int | None:
        return self.kernel.max_len

    def transform(
        self, q: Float[Tensor, "B P HF"], k: Float[Tensor, "B T GF"]
    ) -> tuple[Float[Tensor, "B P HF"], Float[Tensor, "B T GF"]]:
        """What happens to queries and keys, heads joined, before they are compared."""
        return q, k

    def project(
        self, x: Float[Tensor, "B T M"], at: Int[Tensor, "B P"] | None = None
    ) -> tuple[Float[Tensor, "B P H F"], Float[Tensor, "B T G F"], Float[Tensor, "B T G D"]]:
        """Queries, keys and values as the operator takes them; queries at given positions only."""
        q, k = self.transform(self.q_proj(pick(x, at)), self.k_proj(x))
        v = self.v_proj(x).unflatten(-1, (self.num_key_heads, self.head_dim))
        return q.unflatten(-1, (-1, self.feature_dim)), k.unflatten(-1, (-1, self.feature_dim)), v

    def attention_weights(
        self, x: Float[Tensor, "B T M"], at: Int[Tensor, "B P"] | None = None
    ) -> Float[Tensor, "B H P T"]:
        """The weight of every value in every output: for looking at. Rows sum to 1, or to 0 without a similarity."""
        q, k, _ = self.project(x, at)
        return attention_matrix(q, k, self.kernel, eps=self.eps, at=at)

    def mix(
        self, x: Tensor, state: KernelState | None, at: Tensor | None, key_mask: Tensor | None
    ) -> tuple[Tensor, KernelState | None]:
        if state is not None and x.shape[1] == 1 and at is None and key_mask is None:
            return self._step(x, state)
        return self._mix(x, state, at, key_mask, None)

    def mix_packed(
        self,
        x: Float[Tensor, "1 T M"],
        state: KernelState | None,
        at: Int[Tensor, "1 P"] | None,
        key_mask: Bool[Tensor, "1 T"] | None,
        cu_seqlens: Int[Tensor, " N1"],
    ) -> tuple[Tensor, KernelState | None]:
        return self._mix(x, state, at, key_mask, cu_seqlens)

    def _mix(
        self,
        x: Tensor,
        state: KernelState | None,
        at: Tensor | None,
        key_mask: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, KernelState | None]:
        q, k, v = self.project(x, at)
        result: Any = kernel_attention(  # type: ignore[call-overload]
            q,
            k,
            v,
            self.kernel,
            eps=self.eps,
            key_mask=key_mask,
            state=state,
            return_state=state is not None,
            cu_seqlens=cu_seqlens,
            at=at,
            backend=self.backend,
        )
        out, state = (result, None) if state is None else result
        return self.o_proj(out.flatten(2)), state

    def _step(self, x: Tensor, state: KernelState) -> tuple[Tensor, KernelState]:
        q, k, v = (y[:, 0] for y in self.project(x))
        if self.backend == "triton":
            choose_backend("triton", q, self.kernel)  # ValueError where a sequence would have one
        # A step by Triton has no gradient, and only "auto" does without it then.
        backend = "auto" if self.backend in ("auto", "triton") else "torch"
        out, state = kernel_attention_step(
            q, k, v, state, self.kernel, eps=self.eps, inplace=_steps_in_place(), backend=backend
        )
        return self.o_proj(out.flatten(1))[:, None], state

    def new_state(self, batch_size: int, *, device: torch.device | str, dtype: torch.dtype) -> KernelState:
        """Sums are float32 for any ``dtype`` but float64."""
        return initial_state(
            self.kernel,
            batch_size,
            self.num_key_heads,
            self.feature_dim,
            self.head_dim,
            device=device,
            dtype=sums_dtype(dtype),
        )


def _check_constant(kernel: Kernel) -> None:
    terms = kernel.terms if isinstance(kernel, TermKernel) else ()
    if any(isinstance(c, Tensor) and c.requires_grad for c in terms):
        raise ValueError(f"kernel={kernel!r} has coefficients that no optimizer would see; use learn_coefficients")


def _check_polynomial(kernel: Kernel) -> None:
    if not isinstance(kernel, Polynomial):
        raise ValueError(f"learn_coefficients needs kernel='based' or 'rebased', or a Polynomial; kernel is {kernel!r}")
