from torch import Tensor

from posenc.nn.op_call import OpCall
from posenc.nn.score import ScoreEncoding


class PiecewiseEncoding(ScoreEncoding):
    """Base of the encodings with one rotation for near keys and another for far ones.

    They take unrotated queries and keys, so a cache holds unrotated keys, and need integer positions. A key is near
    where ``q_position - k_position < threshold``, so every later key is, which ``is_causal=False`` shows. The argument
    ``window`` of a call hides keys, as in every attention op; it is not the window of the encoding.
    """

    rotates = True
    is_causal_by_default = True
    threshold: int
    head_dim: int

    def sides(
        self, query: Tensor, key: Tensor, q_positions: Tensor | None = None, k_positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``query`` and ``key`` rotated for a call: q_near, k_near, q_far, k_far of ``posenc.ops.piecewise_attention``.

        Args:
            query: (B, H, Tq, D), unrotated.
            key: (B, G, Tk, D), unrotated.
            q_positions: (Tq) or (B, Tq), integer. None: the last Tq of the default ``k_positions``.
            k_positions: (Tk) or (B, Tk), integer. None: ``arange(Tk)``.
        """
        raise NotImplementedError

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`."""
        op.keywords.setdefault("is_causal", self.is_causal_by_default)
        op.query, op.key, q_far, k_far = self.sides(op.query, op.key, op.q_positions, op.k_positions)
        op.add(self, q_far=q_far, k_far=k_far, threshold=self.threshold)
