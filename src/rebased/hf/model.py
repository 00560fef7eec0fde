"""The models, as `transformers` has them: load, generate, fine-tune."""

from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from rebased.hf.cache import RebasedCache
from rebased.hf.config import RebasedConfig
from rebased.hf.fused_loss import fused_causal_loss
from rebased.hf.packing import borders_of
from rebased.hf.replaying import Replayer
from rebased.models import LanguageModel
from rebased.models.language_model import call_block, check_words
from rebased.replay import is_capturing

__all__ = ["RebasedForCausalLM", "RebasedModel", "RebasedPreTrainedModel"]

_IS_GENERATED = "is_generated"
"""Among what `generate` keeps from one token to the next."""


class RebasedPreTrainedModel(PreTrainedModel):
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
        tokens = self._checked(input_ids) if input_ids is not None else _placeholders(inputs_embeds)
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        cache = past_key_values
        if cache is None and use_cache:
            cache = RebasedCache()
        key_mask = _key_mask(attention_mask, tokens, cache)
        is_start = cache is None or cache.num_seen == 0
        if cu_seqlens is None and key_mask is None and position_ids is not None and is_start:
            cu_seqlens = borders_of(position_ids, tokens)
        if cu_seqlens is not None:
            if not is_start:
                raise ValueError("cu_seqlens begin sequences anew: past_key_values must be empty, or not given")
            cache = None  # a row of finished sequences has no next token
        hidden, states = self._run(tokens, inputs_embeds, key_mask, cache, cu_seqlens, at, output_hidden_states)
        out = BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=cache, hidden_states=states)
        return out if _wants_dict(return_dict, self.config) else out.to_tuple()

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


class RebasedForCausalLM(RebasedPreTrainedModel, GenerationMixin):
    """A language model: logits of the next token."""

    _tied_weights_keys = {"lm_head.weight": "model.backbone.embedding.weight"}  # noqa: RUF012  # as the base class has it

    def __init__(self, config: RebasedConfig) -> None:
        super().__init__(config)
        self.model = RebasedModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._replayer = Replayer()
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Embedding:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: Any) -> None:
        self.model.set_input_embeddings(value)

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Weights are about to be moved or cast; a graph of them would keep the old ones in memory."""
        self._replayer.forget()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "#B T"] | None = None,
        past_key_values: RebasedCache | None = None,
        inputs_embeds: Float[Tensor, "B T M"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Int[Tensor, " N1"] | None = None,
        logits_to_keep: int | Int[Tensor, " P"] = 0,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """``labels``: as input_ids, -100 where nothing is to be said; shifted here, as everywhere in transformers.

        ``logits_to_keep``: so many of the last positions, or these themselves; 0 is all. Others are not computed.
        In training, with labels and ``config.fused_loss``, there are no logits: None in their place.
        """
        given = input_ids if input_ids is not None else inputs_embeds
        _check_shapes(input_ids, inputs_embeds, labels)
        has_more = inputs_embeds is not None or labels is not None or cu_seqlens is not None
        can_replay = not (has_more or output_hidden_states)
        replayed = self._replayed(input_ids, attention_mask, past_key_values) if can_replay else None
        if replayed is not None:
            result = CausalLMOutputWithPast(logits=replayed, past_key_values=past_key_values)
            return result if _wants_dict(return_dict, self.config) else result.to_tuple()
        out = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cu_seqlens=cu_seqlens,
            at=None if given is None else _positions_to_keep(logits_to_keep, given),
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        loss: Any = None
        logits = None
        if labels is not None and self._fuses_loss():
            loss = fused_causal_loss(out.last_hidden_state, self.lm_head.weight, labels, **kwargs)
        else:
            logits = self.lm_head(out.last_hidden_state)
            if labels is not None:
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.lm_head.out_features, **kwargs)
        result = CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=out.past_key_values, hidden_states=out.hidden_states
        )
        return result if _wants_dict(return_dict, self.config) else result.to_tuple()

    def _fuses_loss(self) -> bool:
        """A head that others have put something around, as adapters do, is more than its weight."""
        head = self.lm_head
        is_plain = type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks
        return self.training and self.config.fused_loss and is_plain

    def _replayed(self, tokens: Tensor | None, attention_mask: Tensor | None, cache: RebasedCache | None) -> Any:
        """Logits (B, 1, V) of a single token by a recorded graph; None where there is none, or it would not do."""
        body = self.model.backbone
        if tokens is None or not isinstance(cache, RebasedCache) or not self._replayer.can_step(body, tokens, cache):
            return None
        if _key_mask(attention_mask, tokens, cache) is not None:
            return None
        logits = self._replayer.logits(body, self.lm_head, tokens, cache)
        if logits is not None:
            cache.num_seen, cache.num_steps = cache.num_seen + 1, cache.num_steps + 1
        return logits

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers.

        ValueError, before the first token, for prompts that end with padding, which what is generated would follow, and
        for more tokens than the model has positions.
        """
        mask: Any = kwargs.get("attention_mask")
        if mask is not None and mask.ndim == 2 and mask.shape[1] and not bool(mask[:, -1].all()):
            raise ValueError("attention_mask ends with padding: pad prompts on the left, tokenizer.padding_side='left'")
        return super().generate(*args, **kwargs)  # type: ignore[misc]  # of its mixin's own type

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Here transformers first knows how long the text will be: ``max_cache_length`` and one token not read."""
        most, mask = self.model.backbone.max_len, model_kwargs.get("attention_mask")
        num_padded = 0 if mask is None else int((mask == 0).sum(dim=1).min())  # padding has no positions
        needed, new = max_cache_length - num_padded, generation_config.max_new_tokens
        if most is not None and needed > most:
            asked = f"max_length={generation_config.max_length} needs"
            if new is not None:
                asked = f"max_new_tokens={new} after a prompt of {needed + 1 - new} tokens need"
            raise ValueError(f"{asked} {needed} positions, more than the model's {most}")
        return super()._prepare_cache_for_generation(  # type: ignore[misc]  # of its mixin's own type
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """With a note that what follows is a token generated here, for which 1 was added to the mask."""
        updated: dict[str, Any] = super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)
        return updated | {_IS_GENERATED: True}

    def prepare_inputs_for_generation(self, *args: Any, inputs_embeds: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Without the mask of a token that was generated: a GPU would be asked about it at every step.

        ``inputs_embeds`` is named for transformers, which looks here whether a prompt may be given so.
        """
        is_generated = kwargs.pop(_IS_GENERATED, False)
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(  # type: ignore[misc]  # of its mixin's own type
            *args, inputs_embeds=inputs_embeds, **kwargs
        )
        tokens = inputs.get("input_ids")
        if is_generated and tokens is not None and tokens.shape[1] == 1 and inputs.get("past_key_values") is not None:
            inputs.pop("attention_mask", None)
        return inputs


def _key_mask(attention_mask: Tensor | None, tokens: Tensor, cache: RebasedCache | None) -> Bool[Tensor, "B T"] | None:
    """Of these tokens; None where all are real, which a GPU is waited for to say."""
    if attention_mask is None:
        return None
    T, before = tokens.shape[1], 0 if cache is None else cache.num_seen
    if attention_mask.ndim != 2 or attention_mask.shape[0] != tokens.shape[0]:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; it must be (B, T), 1 where a token is real"
        )
    if attention_mask.shape[1] not in (T, before + T):
        raise ValueError(
            f"attention_mask has {attention_mask.shape[1]} columns; there are {T} tokens, and {before} before them"
        )
    key_mask = attention_mask[:, -T:].bool()
    if not torch.compiler.is_compiling() and not is_capturing(tokens) and bool(key_mask.all()):
        return None
    return key_mask


def _check_shapes(input_ids: Tensor | None, inputs_embeds: Tensor | None, labels: Tensor | None) -> None:
    for name, x, shape in (("input_ids", input_ids, "(B, T)"), ("inputs_embeds", inputs_embeds, "(B, T, hidden_size)")):
        if x is None:
            continue
        if x.ndim != shape.count(",") + 1:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {shape}")
        if labels is not None and labels.shape != x.shape[:2]:
            raise ValueError(f"labels has shape {tuple(labels.shape)}; it must be {tuple(x.shape[:2])}, as {name}")


def _positions_to_keep(logits_to_keep: int | Tensor, given: Tensor) -> Int[Tensor, "B P"] | None:
    batch_size, T = given.shape[:2]
    if isinstance(logits_to_keep, int):
        if logits_to_keep < 0:
            raise ValueError(f"logits_to_keep={logits_to_keep} must not be negative")
        if logits_to_keep == 0 or logits_to_keep >= T:
            return None
        logits_to_keep = torch.arange(T - logits_to_keep, T, device=given.device)
    return logits_to_keep.expand(batch_size, -1)


def _placeholders(embeddings: Tensor | None) -> Int[Tensor, "B T"]:
    """Tokens that are not looked up: they say how many there are, and where."""
    assert embeddings is not None
    return torch.zeros(embeddings.shape[:2], dtype=torch.int64, device=embeddings.device)


def _checkpointed(checkpoint: Any, block: nn.Module, x: Tensor, state: Any, **arguments: Any) -> Any:
    """A reentrant checkpoint takes no arguments by name."""
    return checkpoint(partial(block, **arguments), x, state)


def _noting(seen: list[Tensor], run: Any, block: nn.Module, x: Tensor, state: Any, **arguments: Any) -> Any:
    """A list of this call alone: hooks on the blocks would see what other threads do with the model."""
    seen.append(x)
    return run(block, x, state, **arguments)


def _wants_dict(return_dict: bool | None, config: Any) -> bool:
    return bool(config.return_dict if return_dict is None else return_dict)
