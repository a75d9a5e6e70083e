from torch import Tensor

from posenc.nn.base import Encoding


class AbsoluteEncoding(Encoding):
    """Base of the modules that add an encoding of each position to embeddings."""

    dim: int

    def forward(self, x: Tensor, positions: Tensor | None = None, *, offset: int | Tensor = 0) -> Tensor:
        """``x`` plus the encoding of its positions, in the dtype of ``x``.

        Args:
            x: (B, T, dim) or (T, dim).
            positions: (T) or (B, T), in tokens; integer, or where the encoding has values in between, floating. They may
                repeat and be unsorted. None: ``offset + arange(T)``.
            offset: First position where ``positions`` is None: an int, or an int tensor (B).
        """
        if isinstance(offset, Tensor):
            return self._add(x, positions, 0, offset)
        return self._add(x, positions, offset, None)

    def _add(self, x: Tensor, positions: Tensor | None, offset: int, offsets: Tensor | None) -> Tensor:
        raise NotImplementedError
