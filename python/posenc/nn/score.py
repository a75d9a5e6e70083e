from typing import Any

from torch import Tensor

from posenc.nn.base import Encoding


class ScoreEncoding(Encoding):
    """Base of the modules that act on attention scores.

    Attributes:
        always_causal: The encoding is causal by definition.
        takes_positions: False where the encoding counts positions itself, from what it sees.
        needs_gate_key: A call needs gate keys beside the keys.
        needs_log_decay: A call needs ``log_decay``, which the module makes of the layer's input when it is called.
        rotates: The encoding rotates queries and keys itself, and takes them unrotated.
        embed_dim: Width of the layer's input that it was made for; None or not there: any.
        head_dim: D, the width of a head that it was made for; None or not there: any.
        num_heads: H, the query heads that it was made for; None or not there: any number.
    """

    always_causal = False
    takes_positions = True
    needs_gate_key = False
    needs_log_decay = False
    rotates = False
    embed_dim: int | None
    head_dim: int | None
    num_heads: int | None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **call: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Attention with this encoding, fused; the keyword arguments and defaults are those of its op."""
        raise NotImplementedError

    def logits(self, query: Tensor, key: Tensor, *_: Any, **call: Any) -> Tensor:
        """The final scores (B, H, Tq, Tk), float32 (float64 for float64), hidden keys -infinity: for inspection."""
        raise NotImplementedError
