"""A positional encoding of your own in `posenc.nn.Attention`, trained for a few steps.

The encoding is a Toeplitz bias: one learned number for each head and each distance. Which token came a few places
before is a question that attention without positions cannot answer; with this encoding the layer learns to.

    python examples/python/custom_encoding.py
"""

import torch
from torch import nn

import posenc


class ToeplitzBias(posenc.nn.AdditiveEncoding):
    """Adds ``weight[h, R + clip(k_position - q_position, -R, R)]`` to the scores of head h.

    Args:
        num_heads: H, the query heads.
        max_distance: R, in tokens; larger distances share the last entries.
    """

    def __init__(self, num_heads: int, max_distance: int) -> None:
        super().__init__()
        self.num_heads = num_heads  # Attention checks that it has as many
        self.weight = nn.Parameter(torch.zeros(num_heads, 2 * max_distance + 1))

    def terms(self, call: posenc.nn.ScoreCall) -> posenc.nn.ScoreTerms:
        """What is added to the scores of ``call``: a table by distance, in O(T) memory."""
        return posenc.nn.ScoreTerms(distance_bias=self.weight)


class Recall(nn.Module):
    """Tells for each token which one came some places before it."""

    def __init__(self, tokens: int, width: int, encodings: list[posenc.nn.AdditiveEncoding]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.attention = posenc.nn.Attention(width, 2, encodings=encodings)
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, tokens) of tokens (B, T)."""
        return self.head(self.attention(self.embedding(tokens)))


def train(encodings: list[posenc.nn.AdditiveEncoding], steps: int = 60, lag: int = 3, tokens: int = 8) -> float:
    """Trains on random tokens; returns the last loss, which is ln(tokens) for a model that knows nothing."""
    torch.manual_seed(0)
    model = Recall(tokens, 32, encodings)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        text = torch.randint(tokens, (8, 32))
        logits = model(text)[:, lag:]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), text[:, :-lag].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(f"loss without positions   {train([]):.3f}")
    print(f"loss with a Toeplitz bias {train([ToeplitzBias(2, 8)]):.3f}")
