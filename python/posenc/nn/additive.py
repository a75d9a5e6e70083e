from typing import NamedTuple

import torch
from torch import Tensor

from posenc.nn.op_call import OpCall
from posenc.nn.score import ScoreEncoding


class ScoreCall(NamedTuple):
    """A call whose scores get a bias. Only shapes, dtype and device of ``query`` and ``key`` matter.

    Attributes:
        query: (B, H, Tq, D).
        key: (B, G, Tk, D).
        q_positions: (Tq) or (B, Tq); None: the last Tq of the default ``k_positions``.
        k_positions: (Tk) or (B, Tk); None: ``arange(Tk)``.
        state: The ``state_keywords`` and ``optional_keywords`` that the call gave, by name, for all keys.
    """

    query: Tensor
    key: Tensor
    q_positions: Tensor | None
    k_positions: Tensor | None
    state: dict[str, Tensor]


class ScoreTerms(NamedTuple):
    """What is added to the scores of a call: arguments of :func:`posenc.ops.attention`.

    Attributes:
        slopes: ``alibi_slopes``, (H) or (B, H).
        distance_bias: (H, 2R+1), by clipped distance.
        bias: Broadcastable to (B, H, Tq, Tk).
        grid_bias: (H, 2Ry+1, 2Rx+1), by clipped distances on two axes.
        q_positions, k_positions: Coordinates for ``grid_bias``, (2, Tq) and (2, Tk), where the call has none.
    """

    slopes: Tensor | None = None
    distance_bias: Tensor | None = None
    bias: Tensor | None = None
    grid_bias: Tensor | None = None
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None


class AdditiveEncoding(ScoreEncoding):
    """Base of the encodings that add a bias to each attention score.

    One of your own says what it adds, :meth:`terms`; the rest follows. All add the same for keys at equal distances on
    both sides of the query unless they say otherwise; the call decides whether later keys are visible.

    Attributes:
        num_heads: H, the query heads.

    Example:
        >>> class Recency(posenc.nn.AdditiveEncoding):
        ...     def __init__(self, num_heads: int) -> None:
        ...         super().__init__()
        ...         self.num_heads = num_heads
        ...         self.weight = torch.nn.Parameter(torch.zeros(num_heads, 65))
        ...
        ...     def terms(self, call: posenc.nn.ScoreCall) -> posenc.nn.ScoreTerms:
        ...         return posenc.nn.ScoreTerms(distance_bias=self.weight)  # distances -32 to 32
        >>> layer = posenc.nn.Attention(32, 4, encodings=[Recency(4)])
    """

    num_heads: int

    def terms(self, call: ScoreCall) -> ScoreTerms:
        """What is added to the scores of ``call``."""
        raise NotImplementedError

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`."""
        call = op.keywords
        state = {name: call.pop(name) for name in (*self.state_keywords, *self.optional_keywords) if name in call}
        added = self.terms(ScoreCall(op.query, op.key, op.q_positions, op.k_positions, state))
        terms = {"alibi_slopes": added.slopes, "distance_bias": added.distance_bias, "bias": added.bias}
        terms["grid_bias"] = added.grid_bias
        op.add(self, **{name: term for name, term in terms.items() if term is not None})
        if added.q_positions is not None and added.k_positions is not None:
            call |= {"q_positions": added.q_positions, "k_positions": added.k_positions}

    def bias(self, q_len: int, k_len: int | None = None) -> Tensor:
        """What is added, for queries at the last positions of ``k_len`` keys (None: ``q_len``).

        Shape:
            -> (H, q_len, k_len), float32, or float64 where the parameters are

        Raises:
            ValueError: A length is negative.
        """
        k_len = q_len if k_len is None else k_len
        for name, length in (("q_len", q_len), ("k_len", k_len)):
            if length < 0:
                raise ValueError(f"{type(self).__name__}: expected {name} to be at least 0, but got {length}")
        if self.num_heads * q_len * k_len > 2**46:
            raise ValueError(
                f"{type(self).__name__}: expected num_heads * q_len * k_len to be at most {2**46}, but got "
                f"{[self.num_heads, q_len, k_len]}"
            )
        parameter = next(self.parameters(), None)
        dtype = torch.float64 if parameter is not None and parameter.dtype == torch.float64 else torch.float32
        device = "cpu" if parameter is None else parameter.device
        # The scores of queries and keys that are zero.
        query = torch.zeros(1, self.num_heads, q_len, 1, dtype=dtype, device=device)
        key = torch.zeros(1, 1, k_len, 1, dtype=dtype, device=device)
        return self.logits(query, key, scale=1.0)[0]
