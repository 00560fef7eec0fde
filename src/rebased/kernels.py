"""What similarity is: polynomial, power and feature-map kernels, and the named ones.

A kernel gives the similarity of a query and a key twice, with one value: directly (``similarity``), and as a product
of features (``query_features`` · ``key_features``), which is what makes attention linear in time. Coefficients and
weights sit on the query side, so that sums over keys do not depend on them. Kernels compare by identity.

Axes: T query position, S key position, H heads, F ``feature_dim``, E expanded features.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from rebased.checks import check_integer, check_positive_number
from rebased.monomials import monomial_weights, monomials, num_features

__all__ = [
    "BASED",
    "DPFP",
    "ELEMENTWISE_SQUARE",
    "ELU_PLUS_ONE",
    "REBASED",
    "RELU",
    "RFA",
    "CosFormer",
    "FeatureMap",
    "Kernel",
    "Polynomial",
    "Power",
    "TermKernel",
]

Coefficient = float | Tensor


def check_kernel(kernel: object) -> None:
    """TypeError for anything but a kernel, such as the name of one."""
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel is {kernel!r}; it must be a rebased.kernels.Kernel such as REBASED")


def _never_negative(c0: float, c1: float, c2: float) -> bool:
    return c0 >= 0 and c2 >= 0 and c1 * c1 <= 4 * c0 * c2


def _check_coefficient(name: str, c: Coefficient) -> None:
    if isinstance(c, Tensor):
        if not c.is_floating_point() or c.ndim > 1:
            raise ValueError(
                f"{name} is a tensor of dtype {c.dtype} and {c.ndim} axes; it may be floating-point, "
                "0-d or with one entry per head"
            )
    elif isinstance(c, bool) or not isinstance(c, (int, float)):
        raise TypeError(f"{name} is {c!r}; it may be a number or a tensor")
    elif not math.isfinite(c):
        raise ValueError(f"{name}={c} is not finite")


class Kernel(ABC):
    """Base of all kernels. Construct a `FeatureMap` for one of your own, or subclass this for full control.

    Queries are multiplied by ``scale`` before anything else; ``None`` takes the kernel's default.
    """

    name: str
    """Identifies what a state of this kernel means: states travel only between kernels of equal name."""
    nonnegative: bool
    """Whether similarity is never negative. The promises on range and finiteness of attention hold for those."""
    max_len: int | None = None
    """The number of positions the kernel can tell apart; ``None`` if it does not look at positions."""

    @abstractmethod
    def default_scale(self, feature_dim: int) -> float:
        """The scale that ``None`` stands for."""

    @abstractmethod
    def num_features(self, feature_dim: int) -> int:
        """E, the number of features of a query or key of size ``feature_dim``."""

    @abstractmethod
    def query_features(
        self,
        q: Float[Tensor, "*B T H F"],
        positions: Int[Tensor, "*#B T"] | None = None,
        *,
        scale: float | None = None,
    ) -> Float[Tensor, "*B T H E"]:
        """φ(scale · q), with the coefficients and weights that similarity has."""

    @abstractmethod
    def key_features(
        self, k: Float[Tensor, "*B T H F"], positions: Int[Tensor, "*#B T"] | None = None
    ) -> Float[Tensor, "*B T H E"]:
        """φ(k): what a state sums."""

    def similarity(
        self,
        q: Float[Tensor, "*B T H F"],
        k: Float[Tensor, "*B S H F"],
        q_positions: Int[Tensor, "*#B T"] | None = None,
        k_positions: Int[Tensor, "*#B S"] | None = None,
        *,
        scale: float | None = None,
    ) -> Float[Tensor, "*B H T S"]:
        """Similarity of every query to every key, before masks and normalisation."""
        q_features = self.query_features(q, q_positions, scale=scale)
        sim = torch.einsum("...the,...she->...hts", q_features, self.key_features(k, k_positions))
        return sim.clamp(min=0) if self.nonnegative else sim  # products that cancel can round below zero

    def resolve(self, feature_dim: int, scale: float | None, eps: float, *, normalize: bool) -> tuple[float, float]:
        """The scale and eps that attention computes with, given what the caller asked for."""
        return (self.default_scale(feature_dim) if scale is None else float(scale)), float(eps)

    def _scaled(self, q: Tensor, scale: float | None) -> Tensor:
        return q * (self.default_scale(q.shape[-1]) if scale is None else scale)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class TermKernel(Kernel):
    """A sum of terms ``c_d · s^d`` with ``s = scale · qᵀk``; `Polynomial` and `Power` are the two kinds.

    The features of a term of degree d are the distinct monomials of degree d, packed: F(F+1)/2 of them for d = 2.
    Query features carry the multinomial weights (2 for x_a·x_b, a ≠ b) and the coefficients.
    """

    def __init__(self, terms: dict[int, Coefficient], *, nonnegative: bool) -> None:
        self.degrees = tuple(sorted(terms))
        self.terms = tuple(terms[degree] for degree in self.degrees)
        self.nonnegative = nonnegative
        self.is_sum_of_squares = False
        """Whether numbers show it to be nowhere negative; callers may vouch for it where their scores are alone."""
        self.name = "monomials of degree " + ", ".join(map(str, self.degrees))

    def default_scale(self, feature_dim: int) -> float:
        return feature_dim**-0.5

    def num_features(self, feature_dim: int) -> int:
        return num_features(feature_dim, self.degrees)

    @property
    def is_monic(self) -> bool:
        """Whether every coefficient is the number 1, so that none need be multiplied with."""
        return all(not isinstance(term, Tensor) and term == 1 for term in self.terms)

    def coefficients(self, num_heads: int, *, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "H terms"]:
        """The coefficient of each term for each head, in the order of ``degrees``; differentiable."""
        columns = []
        for degree, term in zip(self.degrees, self.terms, strict=True):
            if isinstance(term, Tensor):
                if term.ndim == 1 and term.shape[0] != num_heads:
                    raise ValueError(
                        f"coefficient c{degree} has {term.shape[0]} entries, queries have {num_heads} heads; "
                        "it may be 0-d or hold one entry per head"
                    )
                columns.append(term.to(device=device, dtype=dtype).expand(num_heads))
            else:
                columns.append(torch.full((num_heads,), term, dtype=dtype, device=device))
        return torch.stack(columns, dim=-1)

    def query_features(
        self,
        q: Float[Tensor, "*B T H F"],
        positions: Int[Tensor, "*#B T"] | None = None,
        *,
        scale: float | None = None,
    ) -> Float[Tensor, "*B T H E"]:
        q = self._scaled(q, scale)
        coefficients = self.coefficients(q.shape[-2], dtype=q.dtype, device=q.device)
        parts = []
        for index, degree in enumerate(self.degrees):
            weights = torch.tensor(monomial_weights(q.shape[-1], degree), dtype=q.dtype, device=q.device)
            parts.append(monomials(q, degree) * weights * coefficients[:, index, None])
        return torch.cat(parts, dim=-1)

    def key_features(
        self, k: Float[Tensor, "*B T H F"], positions: Int[Tensor, "*#B T"] | None = None
    ) -> Float[Tensor, "*B T H E"]:
        return torch.cat([monomials(k, degree) for degree in self.degrees], dim=-1)

    def similarity(
        self,
        q: Float[Tensor, "*B T H F"],
        k: Float[Tensor, "*B S H F"],
        q_positions: Int[Tensor, "*#B T"] | None = None,
        k_positions: Int[Tensor, "*#B S"] | None = None,
        *,
        scale: float | None = None,
    ) -> Float[Tensor, "*B H T S"]:
        s = torch.einsum("...thf,...shf->...hts", self._scaled(q, scale), k)
        coefficients = self.coefficients(q.shape[-2], dtype=q.dtype, device=q.device)
        total = torch.zeros_like(s)
        for index, degree in enumerate(self.degrees):
            power = torch.ones_like(s)
            for _ in range(degree):  # s**degree is slow, and not to be compiled where the degree has become a symbol
                power = power * s
            total = total + coefficients[:, index, None, None] * power
        return total.clamp(min=0) if self.nonnegative else total  # several terms can round below zero near a root


class Polynomial(TermKernel):
    """``c0 + c1·s + c2·s²`` with ``s = scale · qᵀk``, scale 1/√F unless given.

    A coefficient is a number, or a learnable tensor of any sign, 0-d or one entry per head. Numbers equal to 0 drop
    their term. ``nonnegative`` is worked out from numbers; with tensors it is False unless the caller vouches for it.
    """

    def __init__(self, c0: Coefficient, c1: Coefficient, c2: Coefficient, *, nonnegative: bool | None = None) -> None:
        given = {0: c0, 1: c1, 2: c2}
        for degree, c in given.items():
            _check_coefficient(f"c{degree}", c)
        terms = {degree: c for degree, c in given.items() if isinstance(c, Tensor) or c != 0}
        if not terms:
            raise ValueError("c0, c1 and c2 are all 0; at least one must not be")
        is_sum_of_squares = not any(isinstance(c, Tensor) for c in terms.values()) and _never_negative(
            *(float(c) for c in given.values())
        )
        super().__init__(terms, nonnegative=is_sum_of_squares if nonnegative is None else nonnegative)
        self.is_sum_of_squares = is_sum_of_squares
        self._given = tuple(f"tensor{tuple(c.shape)}" if isinstance(c, Tensor) else f"{c:g}" for c in given.values())

    def __repr__(self) -> str:
        return f"Polynomial({', '.join(self._given)})"


class Power(TermKernel):
    """``s^p`` for an even p: sharper than ReBased's square, with C(F+p-1, p) features."""

    def __init__(self, p: int) -> None:
        # s^p of inputs up to 1e3 leaves float32's range beyond p = 8, whatever is done about scaling.
        if isinstance(p, bool) or not isinstance(p, int) or p % 2 or not 2 <= p <= 8:
            raise ValueError(f"p={p!r} is not one of 2, 4, 6, 8")
        super().__init__({p: 1.0}, nonnegative=True)
        # Normalised attention is the same for s/c and eps/c^p as for s and eps. These powers of two keep the sums
        # within float32 for inputs up to 1e3, and eps above its smallest normal number.
        self.shrink = {2: 1, 4: 1, 6: 1024, 8: 512}[p]

    def __repr__(self) -> str:
        return f"Power({self.degrees[0]})"

    def resolve(self, feature_dim: int, scale: float | None, eps: float, *, normalize: bool) -> tuple[float, float]:
        scale, eps = super().resolve(feature_dim, scale, eps, normalize=normalize)
        return (scale / self.shrink, eps / self.shrink ** self.degrees[0]) if normalize else (scale, eps)


class FeatureMap(Kernel):
    """``map(scale · q) · map(k)`` for any function of the last axis, written in torch.

    Set ``nonnegative`` if the map's values, or at least all their products, are never negative. ``name`` identifies
    the map in states: give different maps different names.
    """

    def __init__(self, map: Callable[[Tensor], Tensor], *, name: str, nonnegative: bool = False) -> None:
        if not callable(map):
            raise TypeError(f"map is {map!r}; it must be a function of a tensor")
        if not isinstance(name, str):
            raise TypeError(f"name is {name!r}; it must be a string")
        self.map = map
        self.name = name
        self.nonnegative = nonnegative

    def default_scale(self, feature_dim: int) -> float:
        return 1.0

    def num_features(self, feature_dim: int) -> int:
        return self.map(torch.zeros(1, 1, 1, feature_dim)).shape[-1]

    def query_features(
        self,
        q: Float[Tensor, "*B T H F"],
        positions: Int[Tensor, "*#B T"] | None = None,
        *,
        scale: float | None = None,
    ) -> Float[Tensor, "*B T H E"]:
        return self.key_features(self._scaled(q, scale), positions)

    def key_features(
        self, k: Float[Tensor, "*B T H F"], positions: Int[Tensor, "*#B T"] | None = None
    ) -> Float[Tensor, "*B T H E"]:
        return self.map(k)


class CosFormer(FeatureMap):
    """``relu(q)ᵀrelu(k) · cos(π/2 · (i - j) / max_len)`` for positions i and j below ``max_len`` (Qin et al. 2022).

    The cosine of a difference splits into cos·cos + sin·sin, hence 2F features.
    """

    max_len: int

    def __init__(self, max_len: int) -> None:
        check_integer("max_len", max_len)
        super().__init__(torch.relu, name=f"cosformer(max_len={max_len})", nonnegative=True)
        self.max_len = max_len

    def num_features(self, feature_dim: int) -> int:
        return 2 * feature_dim

    def key_features(
        self, k: Float[Tensor, "*B T H F"], positions: Int[Tensor, "*#B T"] | None = None
    ) -> Float[Tensor, "*B T H E"]:
        if positions is None:
            positions = torch.arange(k.shape[-3], device=k.device)
        angles = positions.to(k.dtype)[..., None, None] * (math.pi / 2 / self.max_len)  # (*B, T, 1, 1)
        rectified = torch.relu(k)
        return torch.cat([rectified * angles.cos(), rectified * angles.sin()], dim=-1)


class DPFP(FeatureMap):
    """Deterministic parameter-free projection (Schlag et al. 2021): 2·F·nu features.

    With r = relu([x, -x]), the features are r times r rolled by 1, …, nu.
    """

    def __init__(self, nu: int = 1) -> None:
        check_integer("nu", nu)
        super().__init__(self._project, name=f"dpfp(nu={nu})", nonnegative=True)
        self.nu = nu

    def num_features(self, feature_dim: int) -> int:
        return 2 * feature_dim * self.nu

    def _project(self, x: Tensor) -> Tensor:
        r = torch.relu(torch.cat([x, -x], dim=-1))
        return torch.cat([r * r.roll(shift, dims=-1) for shift in range(1, self.nu + 1)], dim=-1)


class RFA(FeatureMap):
    """Random features of the Gaussian kernel on unit vectors (Peng et al. 2021): 2·``num_random`` features.

    Queries and keys are scaled to length 1, projected by rows w ~ N(0, 1/sigma²) drawn from ``seed``, and mapped to
    ``[sin(w·x), cos(w·x)] / √num_random``; the product is the mean of cos(w·(q - k)), which may be negative.
    """

    def __init__(self, feature_dim: int, num_random: int = 64, *, seed: int = 0, sigma: float = 1.0) -> None:
        check_integer("feature_dim", feature_dim)
        check_integer("num_random", num_random)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed is {seed!r}; it must be an integer")
        check_positive_number("sigma", sigma)
        name = f"rfa(feature_dim={feature_dim}, num_random={num_random}, seed={seed}, sigma={sigma})"
        super().__init__(self._project, name=name)
        generator = torch.Generator().manual_seed(seed)
        self.num_random = num_random
        self.projection = torch.randn(feature_dim, num_random, dtype=torch.float64, generator=generator) / sigma
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        """The projection where it was needed: a recorded step cannot copy it from the host, and none should wait."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_copies": {}}

    def num_features(self, feature_dim: int) -> int:
        return 2 * self.num_random

    def _project(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.projection.shape[0]:
            raise ValueError(
                f"queries and keys have feature_dim={x.shape[-1]}, this RFA was made for {self.projection.shape[0]}"
            )
        angles = functional.normalize(x, dim=-1) @ self._projection_on(x.device, x.dtype)
        return torch.cat([angles.sin(), angles.cos()], dim=-1) * self.num_random**-0.5

    def _projection_on(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        if (device, dtype) not in self._copies:
            with torch.inference_mode(False):
                copy = self.projection.to(device, dtype)
            if type(copy) is not Tensor:  # a tracer's, for this time only
                return copy
            self._copies[device, dtype] = copy
        return self._copies[device, dtype]

    # What `torch.compiler.assume_constant_result` does; calling that would import the compiler, which takes seconds.
    _projection_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _elu_plus_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())  # elu(x) + 1 would round a small exp(x) away


REBASED = Polynomial(0, 0, 1)
"""``s²``: ReBased, once its layer has normalised and shifted queries and keys; alone, the paper's x² ablation."""
BASED = Polynomial(1, 1, 0.5)
"""``1 + s + s²/2``: Based, the second-order Taylor polynomial of exp; never below 0.5."""
ELU_PLUS_ONE = FeatureMap(_elu_plus_one, name="elu+1", nonnegative=True)
"""The Linear Transformer's map (Katharopoulos et al. 2020)."""
RELU = FeatureMap(torch.relu, name="relu", nonnegative=True)
ELEMENTWISE_SQUARE = FeatureMap(torch.square, name="elementwise square", nonnegative=True)
"""x² entry by entry: the map as the paper's text writes it, with F features; its published code computes REBASED."""
