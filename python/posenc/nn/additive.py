from typing import NamedTuple

import torch
from torch import Tensor

from posenc.nn.score import ScoreEncoding

_attention = torch.ops.posenc.attention.default
_attention_logits = torch.ops.posenc._attention_logits.default


class ScoreCall(NamedTuple):
    """A call whose scores get a bias. Only shapes, dtype and device of ``query`` and ``key`` matter."""

    query: Tensor
    key: Tensor
    q_positions: Tensor | None
    k_positions: Tensor | None


class ScoreTerms(NamedTuple):
    """What is added to the scores of a call, as arguments of :func:`posenc.ops.attention`."""

    slopes: Tensor | None = None
    distance_bias: Tensor | None = None
    bias: Tensor | None = None


class AdditiveEncoding(ScoreEncoding):
    """Base of the encodings that add a bias to each attention score.

    A module says what it adds, :meth:`_terms`, and the rest follows. All add the same for equal distances on either side
    of the query unless they say otherwise; whether later keys are seen is up to the call.
    """

    num_heads: int
    # What query . key is multiplied by where the call does not say; None: 1 / sqrt(D).
    scale: float | None = None

    def _terms(self, call: ScoreCall) -> ScoreTerms:
        raise NotImplementedError

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        is_causal: bool = False,
        scale: float | None = None,
        key_mask: Tensor | None = None,
        window: int | None = None,
        segment_ids: Tensor | None = None,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
        dropout_p: float = 0.0,
        return_lse: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention with this bias; keyword arguments as in :func:`posenc.ops.attention`.

        Shape:
            query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv), with ``return_lse`` also
            lse (B, H, Tq)

        Raises:
            ValueError: The query has not ``num_heads`` heads, or another shape or value does not fit.
            TypeError: A dtype does not fit.
        """
        terms = self._terms(ScoreCall(query, key, q_positions, k_positions))
        out, lse = _attention(
            query,
            key,
            value,
            is_causal=is_causal,
            scale=self.scale if scale is None else scale,
            key_mask=key_mask,
            window=window,
            segment_ids=segment_ids,
            q_positions=q_positions,
            k_positions=k_positions,
            alibi_slopes=terms.slopes,
            distance_bias=terms.distance_bias,
            bias=terms.bias,
            dropout_p=dropout_p,
        )
        return (out, lse) if return_lse else out

    def logits(
        self,
        query: Tensor,
        key: Tensor,
        *,
        is_causal: bool = False,
        scale: float | None = None,
        key_mask: Tensor | None = None,
        window: int | None = None,
        segment_ids: Tensor | None = None,
        q_positions: Tensor | None = None,
        k_positions: Tensor | None = None,
    ) -> Tensor:
        """The final scores (B, H, Tq, Tk), float32 (float64 for float64), hidden keys -infinity.

        ``softmax(logits) @ value`` is :meth:`attend`.
        """
        terms = self._terms(ScoreCall(query, key, q_positions, k_positions))
        return _attention_logits(
            query,
            key,
            is_causal=is_causal,
            scale=self.scale if scale is None else scale,
            key_mask=key_mask,
            window=window,
            segment_ids=segment_ids,
            q_positions=q_positions,
            k_positions=k_positions,
            alibi_slopes=terms.slopes,
            distance_bias=terms.distance_bias,
            bias=terms.bias,
        )

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
