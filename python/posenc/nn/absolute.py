from torch import Tensor

from posenc.nn.base import Encoding


class AbsoluteEncoding(Encoding):
    """Base of the modules that add an encoding of each position to embeddings.

    One of your own implements :meth:`forward`.

    Attributes:
        dim: The width of embeddings that it was made for.
        position_axes: A, where positions are (A, T) or (A, B, T), several axes; None where they are (T) or (B, T).
    """

    dim: int
    position_axes: int | None = None

    def forward(self, x: Tensor, positions: Tensor | None = None, *, offset: int | Tensor = 0) -> Tensor:
        """``x`` plus the encoding of its positions, in the dtype of ``x``.

        Args:
            x: (B, T, dim) or (T, dim).
            positions: (T) or (B, T), in tokens; integer, or floating for encodings that are functions of a real
                position. They may repeat and be unsorted. None: ``offset + arange(T)``. For encodings over several
                axes (A, T) or (A, B, T), never None.
            offset: First position where ``positions`` is None: an int, or an int tensor (B).
        """
        if isinstance(offset, Tensor):
            return self._add(x, positions, 0, offset)
        return self._add(x, positions, offset, None)

    def _add(self, x: Tensor, positions: Tensor | None, offset: int, offsets: Tensor | None) -> Tensor:
        raise NotImplementedError
