"""The language model, as `transformers` has it: logits or a loss, and what `generate` needs."""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from rebased.hf.arguments import check_shapes, find_key_mask, positions_to_keep, wants_dict
from rebased.hf.cache import RebasedCache
from rebased.hf.config import RebasedConfig
from rebased.hf.fused_loss import fused_causal_loss
from rebased.hf.model import RebasedModel, RebasedPreTrainedModel
from rebased.hf.replaying import Replayer

__all__ = ["RebasedForCausalLM"]

_IS_GENERATED = "is_generated"
"""Among what `generate` keeps from one token to the next."""


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
        """``labels``: as input_ids, -100 where nothing is to be predicted; shifted here, as everywhere in transformers.

        ``logits_to_keep``: the number of last positions whose logits are computed, 0 for all, or the positions. In
        training, with labels and ``config.fused_loss``, there are no logits, but None in their place.
        """
        given = input_ids if input_ids is not None else inputs_embeds
        check_shapes(input_ids, inputs_embeds, labels)
        has_more = inputs_embeds is not None or labels is not None or cu_seqlens is not None
        can_replay = not (has_more or output_hidden_states)
        replayed = self._replayed(input_ids, attention_mask, past_key_values) if can_replay else None
        if replayed is not None:
            result = CausalLMOutputWithPast(logits=replayed, past_key_values=past_key_values)
            return result if wants_dict(return_dict, self.config) else result.to_tuple()
        out = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cu_seqlens=cu_seqlens,
            at=None if given is None else positions_to_keep(logits_to_keep, given),
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
        return result if wants_dict(return_dict, self.config) else result.to_tuple()

    def _fuses_loss(self) -> bool:
        """Not if something has been put around the head, as adapters do: its weight is then not all that counts."""
        head = self.lm_head
        is_plain = type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks
        return self.training and self.config.fused_loss and is_plain

    def _replayed(self, tokens: Tensor | None, attention_mask: Tensor | None, cache: RebasedCache | None) -> Any:
        """Logits (B, 1, V) of a single token by a recorded graph; None where there is none, or it would not do."""
        body = self.model.backbone
        if tokens is None or not isinstance(cache, RebasedCache) or not self._replayer.can_step(body, tokens, cache):
            return None
        if find_key_mask(attention_mask, tokens, cache) is not None:
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
