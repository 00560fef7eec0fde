"""Linear attention dropped into an existing torch model.

A small GPT with softmax attention, as one finds them. Its attention is a module that takes (batch, time, width) and
gives the same, causally, so each can be replaced by a `ReBased` layer and nothing else changes. Both models then learn
to copy strings for a while, and take a long sequence.

    python examples/drop_in.py
"""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from rebased import ReBased
from rebased.tasks import copying

WIDTH, HEADS, VOCABULARY = 64, 4, 16


class CausalSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), CausalSelfAttention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, max_len: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(max_len, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.blocks(x))


def with_linear_attention(model: nn.Module) -> nn.Module:
    """The same model, with a new layer of linear attention in place of each softmax one."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, CausalSelfAttention):
                setattr(module, name, ReBased(WIDTH, num_heads=HEADS, feature_dim=16))
    return model


def learn_to_copy(model: nn.Module, num_steps: int) -> float:
    """The last loss; a guess has ln 15 = 2.7."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loss = torch.zeros(())
    for step in range(num_steps):
        batch = copying(32, 16, vocab_size=VOCABULARY, first_example=32 * step)
        loss = functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def seconds(model: nn.Module, num_tokens: int) -> float:
    tokens = torch.randint(VOCABULARY, (1, num_tokens))
    model(tokens)
    start = time.perf_counter()
    model(tokens)
    return time.perf_counter() - start


def main(num_steps: int = 100, num_tokens: int = 8192) -> None:
    for name, change in (("softmax", nn.Identity()), ("ReBased", with_linear_attention)):
        torch.manual_seed(0)
        model = change(GPT(max_len=num_tokens))
        loss, duration = learn_to_copy(model, num_steps), seconds(model, num_tokens)
        print(f"{name}: loss {loss:.2f} after {num_steps} steps; {duration:.2f} s for {num_tokens} tokens")


if __name__ == "__main__":
    main()
