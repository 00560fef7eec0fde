"""What a model is made of."""

import copy
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Self

from rebased.checks import check_choice, check_integer, check_positive_number
from rebased.layers import MIXERS, Mixer
from rebased.layers.checks import check_dropout, check_options

__all__ = [
    "AFTER_MIXER",
    "NORMS",
    "POSITIONS",
    "LayerConfig",
    "ModelConfig",
    "check_fields",
    "check_mixers",
    "check_names",
    "required_fields",
]

NORMS = ("layer", "rms")
AFTER_MIXER = ("identity", "mlp", "nothing")
POSITIONS = ("learned", "none")


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """One layer: a mixer and what comes with it."""

    mixer: str
    """A name of `rebased.layers.MIXERS`."""
    options: dict[str, Any] = field(default_factory=dict)
    """The mixer's arguments beside d_model."""
    norm: str = "layer"
    """Before the mixer, and before what follows it: "layer" or "rms"."""
    after: str = "identity"
    """What the stream gets after the mixer: its own norm ("identity"), an "mlp" of that norm, or "nothing"."""

    def __post_init__(self) -> None:
        check_mixers(self.mixer)
        _check_mixer(self.mixer, MIXERS[self.mixer])
        check_options("options", self.options, f"mixer={self.mixer!r}", MIXERS[self.mixer])
        object.__setattr__(self, "options", copy.deepcopy(self.options))  # nobody else's to change
        check_choice("norm", self.norm, NORMS)
        check_choice("after", self.after, AFTER_MIXER)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model: embeddings, layers, a norm, and a head that shares the embeddings' weights."""

    d_model: int
    """Width of the residual stream."""
    seq_len: int
    """Positions there are embeddings for."""
    layers: tuple[LayerConfig, ...]
    vocab_size: int = 8192
    positions: str = "learned"
    """"learned" or "none"."""
    mlp_factor: int = 4
    """Width of the MLPs, in multiples of d_model."""
    embedding_dropout: float = 0.0
    residual_dropout: float = 0.0
    """Of what mixers and MLPs add to the stream."""
    init_std: float = 0.02
    """Standard deviation of embeddings and Linear weights at the start."""

    def __post_init__(self) -> None:
        for name in ("d_model", "seq_len", "vocab_size", "mlp_factor"):
            check_integer(name, getattr(self, name))
        check_choice("positions", self.positions, POSITIONS)
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers or not all(isinstance(layer, LayerConfig) for layer in self.layers):
            raise ValueError(f"layers={self.layers!r} must be one LayerConfig or more")
        for name in ("embedding_dropout", "residual_dropout"):
            check_dropout(name, getattr(self, name))
        check_positive_number("init_std", self.init_std)

    def to_dict(self) -> dict[str, Any]:
        """Of plain types, for JSON."""
        return asdict(self) | {"layers": [asdict(layer) for layer in self.layers]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """What `to_dict` gave. ValueError, listing what there is, for unknown names."""
        check_fields(cls, values)
        for layer in values["layers"]:
            if not isinstance(layer, dict) or "mixer" not in layer:
                raise ValueError(f"layers has {layer!r}; each must be a dictionary with at least a mixer")
            check_names(LayerConfig, layer)
        return cls(**values | {"layers": tuple(LayerConfig(**layer) for layer in values["layers"])})


def check_mixers(*names: str) -> None:
    """ValueError for what is not in `MIXERS`: of a saved model it may be one that this process has not imported."""
    unknown = sorted({repr(name) for name in names if name not in tuple(MIXERS)})
    if unknown:
        raise ValueError(
            f"there is no mixer {', '.join(unknown)}; there are {', '.join(MIXERS)}; one of your own must be imported "
            "first, so that it is in rebased.layers.MIXERS"
        )


def _check_mixer(name: str, make: Any) -> None:
    """A function may make one too; what it makes is not known here."""
    if isinstance(make, type) and not issubclass(make, Mixer):
        raise TypeError(f"MIXERS[{name!r}] is {make.__name__}; it must be a subclass of rebased.layers.Mixer")


def required_fields(cls: type) -> list[str]:
    """Those without a default."""
    return [x.name for x in fields(cls) if x.default is MISSING and x.default_factory is MISSING]


def check_fields(cls: type, values: dict[str, Any]) -> None:
    """ValueError for names that ``cls`` has not, and for fields without a default that have no value."""
    check_names(cls, values)
    missing = [name for name in required_fields(cls) if name not in values]
    if missing:
        raise ValueError(f"{cls.__name__} needs {', '.join(missing)}")


def check_names(cls: type, values: dict[str, Any]) -> None:
    known = [x.name for x in fields(cls)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(f"{cls.__name__} has no {', '.join(unknown)}; there are {', '.join(known)}")
