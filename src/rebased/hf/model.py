"""The model without its head, as `transformers` has it, and what all our classes of models there share."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from rebased.hf.arguments import find_key_mask, placeholder_tokens, wants_dict
from rebased.hf.cache import RebasedCache
from rebased.hf.config import RebasedConfig
from rebased.hf.packing import borders_of
from rebased.models import LanguageModel
from rebased.models.language_model import call_block, check_words
from rebased.replay import is_capturing

__all__ = ["RebasedModel", "RebasedPreTrainedModel"]


class RebasedPreTrainedModel(PreTrainedModel):
    """What transformers asks of all our models: which configuration and cache, and how weights begin."""

    config_class = RebasedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012  # as the base class has it
    _is_stateful = True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """A cache of ours is made by the first call."""
        return False

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing to do: the base class would have our source files copied beside the weights."""

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, LanguageModel):
            module.reset_parameters()


class RebasedModel(RebasedPreTrainedModel):
    """Tokens to what the head sees."""

    def __init__(self, config: RebasedConfig) -> None:
        super().__init__(config)
        self.backbone = LanguageModel(config.to_model_config())
        self.gradient_checkpointing = False
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.backbone.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.backbone.embedding = value

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        past_key_values: RebasedCache | None = None,
        inputs_embeds: Float[Tensor, "B T M"] | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Int[Tensor, " N1"] | None = None,
        at: Int[Tensor, "B P"] | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> Any:
        """``attention_mask``: 1 where a token is real, of the tokens of the cache and these, or of these alone.

        ``cu_seqlens``, or ``position_ids`` that begin anew where there is no mask: sequences packed in a row.
        Positions otherwise follow from the mask and the cache. ``at``: the last layer's outputs there only.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if past_key_values is not None and not isinstance(past_key_values, RebasedCache):
            raise ValueError(f"past_key_values is a {type(past_key_values).__name__}; it must be a RebasedCache")
        tokens = self._checked(input_ids) if input_ids is not None else placeholder_tokens(inputs_embeds)
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        cache = past_key_values
        if cache is None and use_cache:
            cache = RebasedCache()
        key_mask = find_key_mask(attention_mask, tokens, cache)
        is_start = cache is None or cache.num_seen == 0
        if cu_seqlens is None and key_mask is None and position_ids is not None and is_start:
            cu_seqlens = borders_of(position_ids, tokens)
        if cu_seqlens is not None:
            if not is_start:
                raise ValueError("cu_seqlens begin sequences anew: past_key_values must be empty, or not given")
            cache = None  # a row of finished sequences has no next token
        hidden, states = self._run(tokens, inputs_embeds, key_mask, cache, cu_seqlens, at, output_hidden_states)
        out = BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=cache, hidden_states=states)
        return out if wants_dict(return_dict, self.config) else out.to_tuple()

    def _run(
        self,
        tokens: Tensor,
        embeddings: Tensor | None,
        key_mask: Tensor | None,
        cache: RebasedCache | None,
        cu_seqlens: Tensor | None,
        at: Tensor | None,
        wants_states: bool | None,
    ) -> tuple[Any, Any]:
        """What the head sees, and what each layer and the head see if that is wanted."""
        body, T = self.backbone, tokens.shape[1]
        seen: list[Tensor] = []
        state = None
        if cache is not None:
            state = cache.state or body.init_state(tokens.shape[0])
        checkpointing = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        run = partial(_checkpointed, self._gradient_checkpointing_func) if checkpointing else call_block
        hidden, state = body.features(
            tokens,
            embeddings=embeddings,
            state=state,
            at=at,
            key_mask=key_mask,
            cu_seqlens=cu_seqlens,
            run_block=partial(_noting, seen, run) if wants_states else run,
        )
        if cache is not None:
            cache.state, cache.num_seen, cache.num_steps = state, cache.num_seen + T, cache.num_steps + (T == 1)
        return hidden, (*seen, hidden) if wants_states else None

    def _checked(self, tokens: Tensor) -> Tensor:
        """One generated token is in the vocabulary; asking a GPU about it would make every step wait."""
        is_asked = tokens.device.type == "cpu" or tokens.shape[1] > 1
        if is_asked and tokens.numel() and not torch.compiler.is_compiling() and not is_capturing(tokens):
            check_words("input_ids", tokens, len(self.backbone.embedding.weight))
        return tokens


def _checkpointed(checkpoint: Any, block: nn.Module, x: Tensor, state: Any, **arguments: Any) -> Any:
    """A reentrant checkpoint takes no arguments by name."""
    return checkpoint(partial(block, **arguments), x, state)


def _noting(seen: list[Tensor], run: Any, block: nn.Module, x: Tensor, state: Any, **arguments: Any) -> Any:
    """A list of this call alone: hooks on the blocks would see what other threads do with the model."""
    seen.append(x)
    return run(block, x, state, **arguments)
