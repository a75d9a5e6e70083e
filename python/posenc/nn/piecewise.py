import torch
from torch import Tensor

from posenc.nn.score import ScoreEncoding

_piecewise_attention = torch.ops.posenc.piecewise_attention.default
_piecewise_attention_logits = torch.ops.posenc._piecewise_attention_logits.default


class PiecewiseEncoding(ScoreEncoding):
    """Base of the encodings with one rotation nearby and another further on.

    They take unrotated queries and keys, so a cache holds unrotated keys, and need integer positions. Keys ahead of a query,
    which ``is_causal=False`` shows, are near at any distance.
    """

    rotates = True
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

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        is_causal: bool = True,
        scale: float | None = None,
        key_mask: Tensor | None = None,
        window: int | None = None,
        segment_ids: Tensor | None = None,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
        dropout_p: float = 0.0,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention of unrotated queries and keys; keyword arguments as in :func:`posenc.ops.piecewise_attention`.

        ``window`` hides keys, as in every attention op; it is not the window of the encoding.
        """
        q_near, k_near, q_far, k_far = self.sides(query, key, q_positions, k_positions)
        out, lse = _piecewise_attention(
            q_near,
            k_near,
            q_far,
            k_far,
            value,
            self.threshold,
            is_causal=is_causal,
            scale=scale,
            key_mask=key_mask,
            window=window,
            segment_ids=segment_ids,
            q_positions=q_positions,
            k_positions=k_positions,
            dropout_p=dropout_p,
        )
        return (out, lse) if return_lse else out

    def logits(
        self,
        query: Tensor,
        key: Tensor,
        *,
        is_causal: bool = True,
        scale: float | None = None,
        key_mask: Tensor | None = None,
        window: int | None = None,
        segment_ids: Tensor | None = None,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
    ) -> Tensor:
        """The final scores (B, H, Tq, Tk), float32 (float64 for float64), hidden keys -infinity."""
        q_near, k_near, q_far, k_far = self.sides(query, key, q_positions, k_positions)
        return _piecewise_attention_logits(
            q_near,
            k_near,
            q_far,
            k_far,
            self.threshold,
            is_causal=is_causal,
            scale=scale,
            key_mask=key_mask,
            window=window,
            segment_ids=segment_ids,
            q_positions=q_positions,
            k_positions=k_positions,
        )
