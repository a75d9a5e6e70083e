from typing import Any

import torch
from torch import Tensor

from posenc.nn.score import ScoreEncoding

_piecewise_attention = torch.ops.posenc.piecewise_attention.default
_attention_logits = torch.ops.posenc._attention_logits.default


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

    def attend_op(self, query: Tensor, key: Tensor, value: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
        """See :class:`ScoreEncoding`."""
        sides = self.sides(query, key, call.get("q_positions"), call.get("k_positions"))
        return _piecewise_attention(*sides, value, self.threshold, **call)

    def logits_op(self, query: Tensor, key: Tensor, **call: Any) -> Tensor:
        """See :class:`ScoreEncoding`."""
        near_q, near_k, far_q, far_k = self.sides(query, key, call.get("q_positions"), call.get("k_positions"))
        far = {"q_far": far_q, "k_far": far_k, "threshold": self.threshold}
        return _attention_logits(near_q, near_k, **far, **({"is_causal": self.is_causal_by_default} | call))
