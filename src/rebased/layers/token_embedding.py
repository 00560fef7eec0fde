"""Token embeddings as a module that can be hooked, wrapped and replaced, with our gradient."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from rebased.ops.embedding import embedding

__all__ = ["TokenEmbedding"]


class TokenEmbedding(nn.Embedding):
    """`torch.nn.Embedding` whose gradient is fast and repeatable where one token is most of them."""

    def forward(self, input: Int[Tensor, "B T"]) -> Float[Tensor, "B T M"]:
        return embedding(self.weight, input)
