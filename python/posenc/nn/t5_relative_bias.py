import torch
from torch import Tensor

from posenc import _C
from posenc.nn.additive import AdditiveEncoding, ScoreCall, ScoreTerms
from posenc.nn.options import plain_numbers

_t5_table = torch.ops.posenc._t5_table.default


class T5RelativeBias(AdditiveEncoding):
    """The learned biases of T5 (arXiv 1910.10683, section 2.1).

    Adds ``weight[bucket(j - i), h]``, with buckets that widen with the distance, :func:`posenc.ops.t5_bucket`. T5 has
    one such table for all layers: give all layers the same module. T5's cross-attention has none.

    Args:
        num_heads: H, the query heads.
        num_buckets: Rows of the table.
        max_distance: In tokens: all larger distances share the last bucket.
        bidirectional: Keys before and after the query have different buckets (T5's encoder). False: all keys after the
            query share the bucket of distance 0 (T5's decoder).
        scale: What ``query . key`` is multiplied by where the call does not say: T5 does not scale. None: 1 / sqrt(D).

    Attributes:
        weight: The parameter (num_buckets, num_heads), as in T5. Initially N(0, 1 / (64 H)): T5 draws with the variance
            ``1 / d_model``, and has heads of width 64 up to its large size.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.T5RelativeBias(8, bidirectional=True)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v)
    """

    weight: Tensor

    @plain_numbers
    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = False,
        scale: float | None = 1.0,
    ) -> None:
        super().__init__()
        self._initial_std = _C.nn.t5_relative_bias_initial_std(
            num_heads, num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional, scale=scale
        )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.scale = scale
        self.weight = torch.nn.Parameter(torch.empty(num_buckets, num_heads))
        self.reset_parameters()
        self._fix("num_heads", "num_buckets", "max_distance", "bidirectional", "scale")

    def reset_parameters(self) -> None:
        """Draws ``weight`` anew."""
        torch.nn.init.normal_(self.weight, 0.0, self._initial_std)

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}, scale={self.scale}"
        )

    def terms(self, call: ScoreCall) -> ScoreTerms:
        """What is added to the scores of ``call``."""
        table = _t5_table(
            self.weight, call.query, call.key, max_distance=self.max_distance, bidirectional=self.bidirectional
        )
        return ScoreTerms(distance_bias=table)
