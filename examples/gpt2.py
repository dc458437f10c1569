"""GPT-2 (Radford et al., 2019) in any size: 12 layers of width 768 have 124,439,808 parameters. No dropout."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOKENS = 50_257
CONTEXT = 1024
HEAD = 64  # elements of each attention head


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, length, 3, width // HEAD, HEAD)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp_out(F.gelu(self.mlp(self.before_mlp(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Tokens (N, length) to the mean loss of predicting each next token."""

    def __init__(self, layers: int = 12, width: int = 768) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.last = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1] - 1, device=tokens.device)
        x = self.last(self.blocks(self.tokens(tokens[:, :-1]) + self.places(places)))
        logits = F.linear(x, self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def count(layers: int, width: int) -> int:
    """The parameters of such a model."""
    return (TOKENS + CONTEXT + 2) * width + layers * (12 * width * width + 13 * width)


def shape_of(parameters: int) -> tuple[int, int]:
    """(layers, width) of the model whose number of parameters is nearest. Deep as GPT-2's are: a layer for 64 of width,
    up to 48 layers.
    """
    shapes = [(max(2, min(width // HEAD, 48)), width) for width in range(HEAD, 257 * HEAD, HEAD)]
    return min(shapes, key=lambda shape: abs(count(*shape) - parameters))
