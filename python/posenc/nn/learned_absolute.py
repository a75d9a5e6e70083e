import torch
from torch import Tensor

from posenc import _C
from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.options import plain_numbers

_add_learned = torch.ops.posenc._add_learned.default


class LearnedAbsolute(AbsoluteEncoding):
    """A learned embedding for each position (BERT, arXiv 1810.04805; GPT-2), added to embeddings.

    Positions are integers from 0 to ``max_positions - 1``. A position outside raises an error, and the module stays
    usable. Rows that no token uses get zero gradient. Given positions and a tensor ``offset`` are read for that check,
    which synchronises with a GPU; an int ``offset`` is not.

    Args:
        max_positions: Rows of the table.
        dim: Width of an embedding.

    Attributes:
        weight: The parameter (max_positions, dim), initially N(0, 0.02).

    Shape:
        x (B, T, dim) or (T, dim) -> the same

    Raises:
        ValueError: A position outside, or an option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> encoding = posenc.nn.LearnedAbsolute(512, 64)
        >>> y = encoding(torch.randn(2, 16, 64), offset=100)
    """

    weight: Tensor

    @plain_numbers
    def __init__(self, max_positions: int, dim: int) -> None:
        super().__init__()
        _C.nn.check_learned_absolute(max_positions, dim)
        self.max_positions = max_positions
        self.dim = dim
        self.weight = torch.nn.Parameter(torch.empty(max_positions, dim))
        self.reset_parameters()
        self._fix("max_positions", "dim")

    def reset_parameters(self) -> None:
        """Draws ``weight`` anew."""
        torch.nn.init.normal_(self.weight, 0.0, _C.nn.LEARNED_ABSOLUTE_INITIAL_STD)

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.max_positions}, {self.dim}"

    def _add(self, x: Tensor, positions: Tensor | None, offset: int, offsets: Tensor | None) -> Tensor:
        return _add_learned(x, positions, self.weight, offset=offset, offsets=offsets)
