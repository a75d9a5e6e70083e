import torch

from posenc import _C
from posenc.nn.additive import AdditiveEncoding, ScoreCall, ScoreTerms
from posenc.nn.base import fitting
from posenc.nn.options import plain_numbers

_sandwich_table = torch.ops.posenc._sandwich_table.default


class Sandwich(AdditiveEncoding):
    """Sandwich (arXiv 2212.10356): the inner products of sinusoidal embeddings, as a bias.

    Adds for the distance ``n = |i - j|`` and head h = 1 .. H
    ``(sum over k = 1 .. dim/2 of cos(n / 10000 ** (2k/dim)) - dim/2) / (8h/H)``. It has no parameters; angles and
    sums are float64.

    Given positions are read to find the length of the table of distances, which breaks a compiled graph. The length is
    the largest distance of a query to a key in its row, masked keys included, at most 2**24 tokens.

    Args:
        num_heads: H, the query heads.
        dim: Width of the sinusoids; even. Independent of the heads' width.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit, or given positions are more than 2**24 tokens apart.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.Sandwich(8)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v, is_causal=True)
    """

    @plain_numbers
    def __init__(self, num_heads: int, *, dim: int = 128) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dim = dim
        self.inv_freq = _C.nn.Sandwich(num_heads, dim=dim).inv_freq()
        self._fix("num_heads", "dim", "inv_freq")

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.num_heads}, dim={self.dim}"

    def terms(self, call: ScoreCall) -> ScoreTerms:
        """What is added to the scores of ``call``."""
        table = _sandwich_table(
            fitting(call.query, self.inv_freq),
            self.num_heads,
            call.query,
            call.key,
            q_positions=call.q_positions,
            k_positions=call.k_positions,
        )
        return ScoreTerms(distance_bias=table)
