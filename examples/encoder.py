"""A transformer encoder with BERT-large's dimensions, which classifies a sequence by its first token.

Devlin et al.: BERT (2018): 24 layers, 1024 wide, 16 heads, 4096 in between, 30,522 tokens. Without BERT's embeddings
of positions and segments, and with a word as its class: 364,848,954 parameters in 291 tensors. No dropout, so that
runs can be compared.
"""

from torch import Tensor, nn

TOKENS = 30_522


class Encoder(nn.Module):
    """Tokens (N, length), integers below TOKENS, to logits (N, TOKENS)."""

    def __init__(self, layers: int = 24, width: int = 1024, heads: int = 16, inner: int = 4096) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, heads, inner, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens))[:, 0])
