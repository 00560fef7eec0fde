"""The paper's model: two layers for recall, and the language model, of the same parts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rebased.layers.checks import checked_arguments
from rebased.layers.dropout import Dropout
from rebased.layers.token_embedding import TokenEmbedding
from rebased.models.block import Block, make_norm
from rebased.models.config import ModelConfig
from rebased.models.state import ModelState
from rebased.ops.checks import checked_borders, checked_positions
from rebased.ops.cross_entropy import linear_cross_entropy
from rebased.ops.positions import token_counts, token_positions

__all__ = ["LanguageModel", "call_block", "check_words"]


def call_block(block: nn.Module, *arguments: Any, **options: Any) -> tuple[Tensor, Any]:
    result: tuple[Tensor, Any] = block(*arguments, **options)
    return result


class LanguageModel(nn.Module):
    """Token and position embeddings, pre-norm layers on a residual stream, a norm, a head tied to the embeddings."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model)
        self.position_embedding = (
            nn.Embedding(config.seq_len, config.d_model) if config.positions == "learned" else None
        )
        self.dropout = Dropout(config.embedding_dropout)
        self.blocks: Sequence[Block] = nn.ModuleList(Block(config, layer) for layer in config.layers)  # type: ignore[assignment]
        self.norm = make_norm("layer", config.d_model)
        self.init_weights()

    def reset_parameters(self) -> None:
        """Everything anew: for a model made on the meta device and given memory by ``to_empty``."""
        for module in reversed(list(self.modules())):  # a module may overwrite what its parts did
            reset: Any = getattr(module, "reset_parameters", None)
            if module is not self and reset is not None:
                reset()
        self.init_weights()

    def init_weights(self) -> None:
        """Embeddings and Linear weights N(0, init_std²), biases 0; a mixer may keep its own (`Mixer.init_weights`)."""
        std = self.config.init_std
        nn.init.normal_(self.embedding.weight, std=std)
        if self.position_embedding is not None:
            nn.init.normal_(self.position_embedding.weight, std=std)
        for block in self.blocks:
            block.init_weights(std, len(self.blocks))

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        state: ModelState | None = None,
        at: Int[Tensor, "B P"] | None = None,
        key_mask: Bool[Tensor, "B T"] | None = None,
        cu_seqlens: Int[Tensor, " N1"] | None = None,
        labels: Int[Tensor, "B P"] | None = None,
    ) -> Any:
        """Logits (B, T, vocabulary); with a ``state``, (logits, state).

        ``at``: logits at those positions only, (B, P, vocabulary); the last layer and the head then compute no others.
        ``key_mask``: True where a token is real; positions count real tokens, so left padding changes nothing.
        ``cu_seqlens``: sequences in a row, as mixers take them. ValueError for more tokens than there are positions.
        ``labels``: in place of logits, the cross-entropy of each of these tokens, (B, T), or (B, P) with ``at``; 0
        where a label is negative. The logits are never in memory.
        """
        x, state = self.features(tokens, state=state, at=at, key_mask=key_mask, cu_seqlens=cu_seqlens)
        out = self._logits(x) if labels is None else self._losses(x, labels)
        return out if state is None else (out, state)

    def _logits(self, x: Tensor) -> Float[Tensor, "B P V"]:
        return torch.nn.functional.linear(x, self.embedding.weight)

    def _losses(self, x: Tensor, labels: Tensor) -> Float[Tensor, "B P"]:
        if labels.shape != x.shape[:2]:
            raise ValueError(f"labels has shape {tuple(labels.shape)}; it must be {tuple(x.shape[:2])}")
        _check_on_a_cpu("labels", labels.clamp(min=0), len(self.embedding.weight))
        losses = linear_cross_entropy(x.flatten(0, 1), self.embedding.weight, labels.flatten().clamp(min=0))
        return losses.view(labels.shape).where(labels >= 0, 0.0)

    def features(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        embeddings: Float[Tensor, "B T M"] | None = None,
        state: ModelState | None = None,
        at: Int[Tensor, "B P"] | None = None,
        key_mask: Bool[Tensor, "B T"] | None = None,
        cu_seqlens: Int[Tensor, " N1"] | None = None,
        run_block: Callable[..., tuple[Tensor, Any]] = call_block,
    ) -> tuple[Float[Tensor, "B P M"], ModelState | None]:
        """What the head sees, and the state after it; arguments as in `forward`.

        ``embeddings`` take the place of the tokens', which then only say how many there are. ``run_block`` calls each
        block, given it and its arguments: a place for `torch.utils.checkpoint.checkpoint`.
        """
        _check_tokens(tokens)
        _check_on_a_cpu("tokens", tokens, len(self.embedding.weight))
        at = checked_arguments(tokens, state, ModelState, at, key_mask, cu_seqlens)
        if cu_seqlens is not None:
            cu_seqlens = checked_borders(cu_seqlens, tokens.shape[1])
        x = self.embedding(tokens) if embeddings is None else embeddings
        if self.position_embedding is not None:
            x = x + self._positions(tokens, state, key_mask, cu_seqlens)
        x = self.dropout(x)
        states = []
        for index, block in enumerate(self.blocks):
            is_last = index == len(self.blocks) - 1
            x, new_state = run_block(
                block,
                x,
                None if state is None else state.layers[index],
                at=at if is_last else None,
                key_mask=key_mask,
                cu_seqlens=cu_seqlens,
            )
            states.append(new_state)
        x = self.norm(x)
        if state is None:
            return x, None
        return x, ModelState(tuple(states), state.count + token_counts(key_mask, cu_seqlens, tokens))

    @property
    def max_len(self) -> int | None:
        """How many tokens a sequence may have, by the position table and the mixers; None where any number will do."""
        table = None if self.position_embedding is None else self.position_embedding.num_embeddings
        limits = [table, *(block.mixer.max_len for block in self.blocks)]
        return min((limit for limit in limits if limit is not None), default=None)

    def _positions(
        self, tokens: Tensor, state: ModelState | None, key_mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> Float[Tensor, "B T M"]:
        assert self.position_embedding is not None
        limit, T = self.config.seq_len, tokens.shape[1]
        if state is None and key_mask is None and cu_seqlens is None:
            if limit < T:
                raise ValueError(f"tokens has {T} positions; this model has seq_len={limit}")
            return self.position_embedding.weight[:T]
        positions = token_positions(key_mask, cu_seqlens, None if state is None else state.count, tokens)
        return self.position_embedding(checked_positions(positions, limit, "the model's position"))

    def init_state(
        self, batch_size: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> ModelState:
        """The state before the first token; where and of what the model's weights are, unless given."""
        device = self.embedding.weight.device if device is None else device
        dtype = self.embedding.weight.dtype if dtype is None else dtype
        layers = tuple(block.mixer.init_state(batch_size, device=device, dtype=dtype) for block in self.blocks)
        return ModelState(layers, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def state_bytes(self, num_tokens: int, *, dtype: torch.dtype | None = None) -> int:
        """What the layers' states of one sequence take after so many tokens, with the weights' dtype unless given."""
        dtype = self.embedding.weight.dtype if dtype is None else dtype
        return sum(block.mixer.state_bytes(num_tokens, dtype=dtype) for block in self.blocks)


def check_words(name: str, words: Tensor, vocab_size: int) -> None:
    """ValueError for one beyond the vocabulary; an index from the end would be taken for a word."""
    least, most = torch.aminmax(words)
    if least < 0 or most >= vocab_size:
        raise ValueError(
            f"{name} has tokens from {int(least)} to {int(most)}; the vocabulary has 0 to {vocab_size - 1}"
        )


def _check_on_a_cpu(name: str, words: Tensor, vocab_size: int) -> None:
    """Other devices are not asked: every call would wait for them."""
    is_traced = (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or type(words) is not Tensor
    )
    if words.device.type == "cpu" and not is_traced and words.numel():
        check_words(name, words, vocab_size)


def _check_tokens(tokens: Tensor) -> None:
    if tokens.ndim != 2 or tokens.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"tokens has shape {tuple(tokens.shape)} and dtype {tokens.dtype}; it must be (B, T), int32 or int64"
        )
