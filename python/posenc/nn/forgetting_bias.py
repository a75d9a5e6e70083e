import math
from typing import Literal

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.op_call import OpCall
from posenc.nn.options import plain_numbers
from posenc.nn.score import ScoreEncoding

_attention = torch.ops.posenc.attention.default
_attention_logits = torch.ops.posenc._attention_logits.default
_decay_terms = torch.ops.posenc._decay_terms.default
_log_decay = torch.ops.posenc._log_decay.default


class ForgettingBias(ScoreEncoding):
    """A bias computed from the tokens (FoX, arXiv 2503.02130; CABLE, arXiv 2503.08067), always causal.

    Each token t has a number ``a_h(t) <= 0``, computed from the layer's input ``x_t``: later tokens see keys before t
    with weights multiplied by ``exp(a_h(t))``. The score of query i and key j is ``q_i . k_j / sqrt(D)`` plus the sum
    of ``a_h(t)`` for ``j < t <= i``.

    Sums go by index. Tokens that ``key_mask`` hides and those of other segments add nothing. A cache holds ``a_h(t)``
    of each token with its key and value.

    Args:
        embed_dim: Width of the layer's input.
        num_heads: H, the query heads.
        kind: "fox": ``a_h(t) = log sigmoid(weight_h . x_t + bias_h)``, forgetting attention. "cable":
            ``-softplus(weight_h . x_t)``.

    Attributes:
        weight: The parameter (H, embed_dim), initially as that of ``torch.nn.Linear``.
        bias: The parameter (H) of "fox", else None. Initially 0, as in the authors' code: a token keeps about half. For
            a memory of about t tokens at the start fill it with ``ln(t)``.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv), log_decay (B, H, Tk) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit, or ``log_decay`` is None.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.ForgettingBias(512, 8)
        >>> x = torch.randn(1, 32, 512)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v, log_decay=encoding(x))
    """

    always_causal = True
    takes_positions = False
    state_keywords = ("log_decay",)
    embed_dim: int
    num_heads: int
    weight: Tensor
    bias: Tensor | None

    @plain_numbers
    def __init__(self, embed_dim: int, num_heads: int, *, kind: Literal["fox", "cable"] = "fox") -> None:
        super().__init__()
        _C.nn.check_forgetting_bias(embed_dim, num_heads, kind)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.kind = kind
        self.weight = torch.nn.Parameter(torch.empty(num_heads, embed_dim))
        bias = torch.nn.Parameter(torch.empty(num_heads)) if kind == "fox" else None
        self.register_parameter("bias", bias)
        self.reset_parameters()
        self._fix("embed_dim", "num_heads", "kind")

    def reset_parameters(self) -> None:
        """Draws ``weight`` anew and zeroes ``bias``."""
        torch.nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """``a_h(t)`` of each token.

        Args:
            x: (B, T, embed_dim), the input of the layer.

        Returns:
            (B, H, T), float32 (float64 for float64), also of half-width parameters and under autocast: sums run over
            thousands of tokens.
        """
        return _log_decay(x, self.weight, self.bias, complement=self.kind == "cable")

    def token_state(self, x: Tensor) -> dict[str, Tensor]:
        """``log_decay``, :meth:`forward` of ``x``."""
        return {"log_decay": self(x)}

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`. ``log_decay`` (B, H, Tk) is :meth:`forward` of the tokens of all keys."""
        own, key_mask = op.keywords.pop("log_decay", None), op.keywords.get("key_mask")
        op.keywords["is_causal"] = True
        op.add(self, log_decay=_decay_terms(own, op.query, op.key, self.num_heads, key_mask))

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.embed_dim}, {self.num_heads}, kind={self.kind!r}"
