from typing import Literal

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.base import on_device_of
from posenc.nn.heads import check_query, check_width
from posenc.nn.op_call import OpCall
from posenc.nn.options import plain_numbers
from posenc.nn.score import ScoreEncoding

_transformer_xl_terms = torch.ops.posenc._transformer_xl_terms.default
_HIDING = ("is_causal", "window", "window_left", "window_right", "q_positions", "k_positions")


class TransformerXL(ScoreEncoding):
    """The relative attention of Transformer-XL (arXiv 1901.02860, section 3.3) and Conformers (arXiv 2005.08100).

    With ``r[n] = pos_proj @ sinusoids(n)``, D numbers for each head, and n the query's position minus the key's,
    ``score(i, j) = ((q_i + content_bias) . k_j + (q_i + position_bias) . r[i - j]) / sqrt(D)``.

    Rows of r are made in each call, for the distances at which keys may be seen in it, in float32 (float64 for float64)
    but under autocast. Given positions are read for that, which breaks a compiled graph; they may be 2**24 tokens
    apart. Causal only where a call says ``is_causal=True``.

    Args:
        head_dim: D, the width of a head.
        num_heads: H, the query heads.
        pos_dim: Width of the sinusoids, even. None: H * D.
        layout: Their columns: "concatenated", all sines, then all cosines (Transformer-XL, XLNet); "interleaved",
            sines and cosines in turns (Parakeet, Wav2Vec2-Conformer).

    Attributes:
        content_bias: u, the parameter (H, D), initially N(0, 0.02) as in the authors' code, like the others.
        position_bias: v, the parameter (H, D).
        pos_proj: The parameter (H * D, pos_dim).
        inv_freq: ``10000 ** (-2k/pos_dim)``, radians per token, float64.

    Shape:
        query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv)

    Raises:
        ValueError: An option or a shape does not fit, or given positions are more than 2**24 tokens apart.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.TransformerXL(64, 8)
        >>> q, k, v = torch.randn(3, 1, 8, 32, 64)
        >>> out = encoding.attend(q, k, v)
    """

    head_dim: int
    num_heads: int
    content_bias: Tensor
    position_bias: Tensor
    pos_proj: Tensor

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        *,
        pos_dim: int | None = None,
        layout: Literal["concatenated", "interleaved"] = "concatenated",
    ) -> None:
        super().__init__()
        self.inv_freq = _C.nn.transformer_xl_inv_freq(head_dim, num_heads, pos_dim, layout)
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.pos_dim = num_heads * head_dim if pos_dim is None else pos_dim
        self.layout = layout
        self.content_bias = torch.nn.Parameter(torch.empty(num_heads, head_dim))
        self.position_bias = torch.nn.Parameter(torch.empty(num_heads, head_dim))
        self.pos_proj = torch.nn.Parameter(torch.empty(num_heads * head_dim, self.pos_dim))
        self.reset_parameters()
        self._fix("head_dim", "num_heads", "pos_dim", "layout", "inv_freq")

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        for parameter in self.parameters(recurse=False):
            torch.nn.init.normal_(parameter, 0.0, _C.nn.TRANSFORMER_XL_INITIAL_STD)

    def add_terms(self, op: OpCall) -> None:
        """See :class:`ScoreEncoding`."""
        check_query("TransformerXL", op.query, self.head_dim, self.num_heads)
        check_width("TransformerXL", "key", op.key, self.head_dim)
        # query + u, query + v and the rows of r by distance.
        content, position, rel_k = _transformer_xl_terms(
            self.content_bias,
            self.position_bias,
            self.pos_proj,
            on_device_of(op.query, self.inv_freq),
            op.query,
            op.key,
            interleaved=self.layout == "interleaved",
            has_blocks="block_ids" in op.keywords,
            **{name: op.keywords[name] for name in _HIDING if name in op.keywords},
        )
        op.add(self, rel_query=position, rel_k=rel_k)
        op.query = content

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.head_dim}, {self.num_heads}, pos_dim={self.pos_dim}, layout={self.layout!r}"
