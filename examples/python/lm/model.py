"""The language model: a pre-norm transformer over bytes, whose positions are left to an encoding."""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import gelu

from .encodings import ENCODINGS, EncodingError, Sizes

VOCABULARY = 256


@dataclass(frozen=True)
class ModelOptions:
    """Size and encoding of a model, and the length of the windows that it is trained on."""

    encoding: str = "rotary"
    layers: int = 3
    width: int = 128
    heads: int = 4
    context: int = 128

    @property
    def sizes(self) -> Sizes:
        """What its encoding is made for."""
        return Sizes(self.context, self.heads, self.width, self.width // self.heads)


class Attention(nn.Module):
    """Multi-head self-attention; the encoding attends."""

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        self.heads = options.heads
        self.qkv = nn.Linear(options.width, 3 * options.width, bias=False)
        self.out = nn.Linear(options.width, options.width, bias=False)
        self.attend = ENCODINGS[options.encoding].attention(options.sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, T, width) to the same shape."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.out(self.attend(q, k, v, x=x).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward layer, each normalised before and added after."""

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(options.width)
        self.attention = Attention(options)
        self.feed_norm = nn.LayerNorm(options.width)
        self.feed_in = nn.Linear(options.width, 4 * options.width)
        self.feed_out = nn.Linear(4 * options.width, options.width)
        # A block that starts as the identity lets the first steps be large.
        nn.init.zeros_(self.attention.out.weight)
        nn.init.zeros_(self.feed_out.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (B, T, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_out(gelu(self.feed_in(self.feed_norm(x))))


class LanguageModel(nn.Module):
    """Scores for the next byte at every position.

    Raises:
        EncodingError: the encoding cannot have these sizes.
    """

    def __init__(self, options: ModelOptions) -> None:
        super().__init__()
        self.options = options
        self.embedding = nn.Embedding(VOCABULARY, options.width)
        try:
            self.positions = ENCODINGS[options.encoding].embedding(options.sizes)
            self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        except ValueError as error:
            raise EncodingError(f"the encoding {options.encoding!r} does not fit: {error}") from error
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps bytes (B, T) int64 to logits (B, T, 256)."""
        x = self.positions(self.embedding(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
