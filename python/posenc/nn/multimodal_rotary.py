from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posenc import _C
from posenc.nn.options import plain_number, plain_numbers
from posenc.nn.rotary import ScaledRotaryEncoding, check_axes
from posenc.ops.rotary import changed_options
from posenc.scaling import Scaling


class MultimodalRotary(ScaledRotaryEncoding):
    """Multimodal RoPE (M-RoPE of Qwen2-VL, arXiv 2409.12191): positions on the axes time, height and width.

    All axes share one list of frequencies; each pair is rotated by the position on one axis. Where the positions on all
    axes are equal, as for text, it equals :class:`Rotary` bit for bit. :func:`posenc.positions.multimodal_positions`
    builds positions of text, image and video spans.

    Args:
        head_dim: D, the width of a head.
        sections: How many pairs each axis rotates; they add up to R/2.
        rotary_dim: R, even and at most ``head_dim``: how many columns are rotated. None: all.
        base: Base of the frequencies.
        interleaved: Pairs are (2k, 2k+1) instead of (k, k + R/2).
        interleaved_sections: The axes alternate over the pairs (Qwen3-VL): pair c belongs to axis a > 0 where
            ``c % A == a and c < A * sections[a]``, else to axis 0. False: section by section (Qwen2-VL).
        scaling: One of :mod:`posenc.scaling`; length-dependent ones as in :class:`Rotary`.
        exact: False: float32 frequencies and angles, bit for bit those of transformers.
        seq_len: Length in tokens for length-dependent scalings.

    Shape:
        q (B, H, T, D), k (B, G, T, D), positions (A, T) or (A, B, T), None for ``offset + arange(T)`` on every axis ->
        (q', k'), or q' where k is None

    Example:
        >>> rope = posenc.nn.MultimodalRotary(128, (16, 24, 24), base=1e6)
        >>> positions = posenc.positions.multimodal_positions([("text", 4), ("image", (1, 2, 3)), ("text", 2)])
        >>> q = rope(torch.randn(1, 8, 12, 128), positions=positions)
    """

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        sections: Sequence[int],
        *,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        interleaved_sections: bool = False,
        scaling: Scaling = None,
        exact: bool = True,
        seq_len: int | None = None,
    ) -> None:
        super().__init__()
        self.sections = tuple(plain_number("MultimodalRotary", "sections", section, int) for section in sections)
        twin = _C.nn.MultimodalRotary(
            head_dim,
            list(self.sections),
            rotary_dim=rotary_dim,
            base=base,
            interleaved=interleaved,
            interleaved_sections=interleaved_sections,
            scaling=scaling,
            exact=exact,
            seq_len=seq_len,
        )
        self.head_dim = head_dim
        self.position_axes = len(self.sections)
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.base = base
        self.interleaved = interleaved
        self.interleaved_sections = interleaved_sections
        self.exact = exact
        self.seq_len = seq_len
        self._set_scaling(scaling)
        self.inv_freq, self.attention_scaling = twin.frequencies(seq_len)
        self._op_options = changed_options(
            self.attention_scaling, interleaved=interleaved, axes=twin.axes(), exact=exact
        )
        self._fix(
            "head_dim",
            "sections",
            "rotary_dim",
            "base",
            "interleaved",
            "interleaved_sections",
            "scaling",
            "exact",
            "seq_len",
            "attention_scaling",
            "inv_freq",
        )

    @classmethod
    def from_hf(
        cls,
        config: Any,
        layer_type: str | None = None,
        head_dim: int | None = None,
        interleaved: bool | None = None,
        **options: Any,
    ) -> "MultimodalRotary":
        """Builds the embedding that a transformers configuration with ``mrope_section`` describes, as
        :meth:`Rotary.from_hf` does.

        Example:
            >>> rope = posenc.nn.MultimodalRotary.from_hf({"type": "mrope", "mrope_section": [1, 1, 2]}, head_dim=8)
        """
        from posenc import hf  # registers with transformers, which importing posenc shall not do

        return cls(**hf.multimodal_rotary_arguments(config, layer_type, head_dim, interleaved), **options)

    def _frequencies_for(
        self, q: Tensor, positions: Tensor | None, offset: int | Tensor, seq_len: int | None
    ) -> Tensor:
        if positions is not None:
            check_axes("MultimodalRotary", positions, len(self.sections))
        return super()._frequencies_for(q, positions, offset, seq_len)

    def extra_repr(self) -> str:
        """The options."""
        parts = [
            f"{self.head_dim}, {self.sections}, rotary_dim={self.rotary_dim}, base={self.base}, "
            f"interleaved={self.interleaved}, interleaved_sections={self.interleaved_sections}"
        ]
        parts += self._scaling_parts()
        return ", ".join(parts)
