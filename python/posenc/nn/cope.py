from typing import Literal

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.heads import check_query, check_width
from posenc.nn.op_call import OpCall
from posenc.nn.options import plain_numbers
from posenc.nn.score import ScoreEncoding

_cope_attention = torch.ops.posenc.cope_attention.default
_attention_logits = torch.ops.posenc._attention_logits.default
_cope_position_logits = torch.ops.posenc._cope_position_logits.default


class CoPE(ScoreEncoding):
    """Contextual position encoding (CoPE, arXiv 2405.18719, eq. 3 to 5): positions are sums of gates, by query.

    Always causal. With ``s = 1 / sqrt(D)``, ``gate(i, l) = sigmoid(s q_i . k_l)`` and the position of key j for query i
    is ``p(i, j) = min(sum over l = j .. i of gate(i, l), P - 1)``; its score is ``s q_i . k_j`` plus ``q_i . pos_emb``
    interpolated at ``p(i, j)``. The clamp at P - 1 passes no gradient. Where a position is a whole number below P - 1,
    as with gates of 1/2, its gradient is the slope of the interval above, ``q_i . (pos_emb[p + 1] - pos_emb[p])``.

    Keys hidden by causality, ``key_mask``, ``window`` or ``segment_ids`` are neither attended nor counted. Positions
    depend on the query, so a cache cannot hold them: it holds keys (and gate keys).

    Args:
        head_dim: D, the width of a head.
        max_positions: P: positions are 0 to P - 1; larger sums count as P - 1.
        num_heads: H: a table per head. None: one that all heads share.
        scale_position_logits: True: ``q . pos_emb`` is multiplied by the scale of the content logits too, as Meta's
            repository does. False: the paper's listing.
        gate: What the query is multiplied with to form the gates. "logits": the keys, as in the paper. "key": separate
            gate keys, given to each call as ``gate_key``. "value": the values, which must then be D wide.
        gate_bias: Initial value of a parameter (H) that is added to the gates' logits; needs ``num_heads``.
            ``ln(a / (1 - a))`` with ``a = span / T`` makes T tokens span about ``span`` positions at the start.

    Attributes:
        pos_emb: The parameter (1 or H, D, P), initially 0.
        gate_bias: The parameter (H), or None.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit; ``gate_key`` is missing or has no use.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.CoPE(64, 24)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v)
    """

    always_causal = True
    takes_positions = False
    optional_keywords = ("gate_key",)
    head_dim: int
    pos_emb: Tensor
    gate_bias: Tensor | None

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        max_positions: int,
        *,
        num_heads: int | None = None,
        scale_position_logits: bool = False,
        gate: Literal["logits", "key", "value"] = "logits",
        gate_bias: float | None = None,
    ) -> None:
        super().__init__()
        _C.nn.check_cope(head_dim, max_positions, num_heads=num_heads, gate=gate, gate_bias=gate_bias)
        self.head_dim = head_dim
        self.max_positions = max_positions
        self.num_heads = num_heads
        self.scale_position_logits = scale_position_logits
        self.gate = gate
        self.needs_gate_key = gate == "key"
        self._initial_gate_bias = gate_bias
        tables = 1 if num_heads is None else num_heads
        self.pos_emb = torch.nn.Parameter(torch.empty(tables, head_dim, max_positions))
        bias = None if gate_bias is None else torch.nn.Parameter(torch.empty(tables))
        self.register_parameter("gate_bias", bias)
        self.reset_parameters()
        self._fix("head_dim", "max_positions", "num_heads", "scale_position_logits", "gate", "needs_gate_key")

    def reset_parameters(self) -> None:
        """Zeroes ``pos_emb`` and sets ``gate_bias`` to its initial value."""
        torch.nn.init.zeros_(self.pos_emb)
        if self.gate_bias is not None and self._initial_gate_bias is not None:
            torch.nn.init.constant_(self.gate_bias, self._initial_gate_bias)

    def forward(self, query: Tensor, attn_logits: Tensor) -> Tensor:
        """The paper's module form: position logits, to be added to ``attn_logits`` before the softmax.

        Gates are ``sigmoid(attn_logits + gate_bias)``. With ``gate="key"`` or ``gate="value"`` pass ``query .
        gate_key`` instead of the attention logits. Sums are float32 (float64 for float64).

        Args:
            query: (B, H, Tq, D).
            attn_logits: (B, H, Tq, Tk), already scaled and masked: hidden keys -infinity or very negative. A later key
                that is not masked would be counted.

        Returns:
            (B, H, Tq, Tk), in the dtype of ``attn_logits``. Over ``sqrt(D)`` with ``scale_position_logits``.
        """
        return _cope_position_logits(
            query,
            attn_logits,
            self.pos_emb,
            gate_bias=self.gate_bias,
            scale_position_logits=self.scale_position_logits,
        )

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`. ``gate_key`` (B, G, Tk, D) belongs to ``gate="key"`` and is needed there; in
        :meth:`logits` it holds the values with ``gate="value"``."""
        check_query("CoPE", op.query, self.head_dim, self.num_heads)
        gate_key = op.keywords.pop("gate_key", None)
        if self.gate == "logits" and gate_key is not None:
            raise ValueError("CoPE: expected no gate_key with gate='logits', where the keys make the gates")
        if self.gate == "key" and gate_key is None:
            raise ValueError("CoPE: expected gate_key (batch, kv_heads, keys, head_dim) with gate='key'")
        if self.gate == "value" and op.value is not None:
            if gate_key is not None:
                raise ValueError("CoPE: expected no gate_key with gate='value', where the values make the gates")
            check_width("CoPE", "value", op.value, self.head_dim)
            gate_key = op.value
        elif self.gate == "value" and gate_key is None:
            raise ValueError("CoPE: expected gate_key, the values, in logits with gate='value'")
        op.keywords["is_causal"] = True
        op.add(self, pos_emb=self.pos_emb)
        if gate_key is not None:
            op.keywords["gate_key"] = gate_key
        if self.gate_bias is not None:
            op.keywords["gate_bias"] = self.gate_bias
        if self.scale_position_logits:
            op.keywords["scale_position_logits"] = True

    def extra_repr(self) -> str:
        """The options."""
        return (
            f"{self.head_dim}, {self.max_positions}, num_heads={self.num_heads}, "
            f"scale_position_logits={self.scale_position_logits}, gate={self.gate!r}, "
            f"gate_bias={self._initial_gate_bias}"
        )
