from typing import Literal

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.options import plain_number, plain_numbers

_add_learned = torch.ops.posenc._add_learned.default
_resized_positions = torch.ops.posenc._resized_positions.default


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

    def resize(
        self,
        new_positions: int | tuple[int, int],
        *,
        prefix: int = 0,
        grid: tuple[int, int] | None = None,
        mode: Literal["linear", "bilinear", "bicubic"] | None = None,
        align_corners: bool = False,
        antialias: bool = False,
    ) -> "LearnedAbsolute":
        """A new module for other positions, with the table interpolated; this one stays as it is.

        With a grid, the table after its prefix is an image of embeddings, row by row, as in vision transformers (ViT,
        arXiv 2010.11929, section 3.2); with a number of positions it is a line. Numbers are those of
        :func:`torch.nn.functional.interpolate`, in float32 for 16-bit tables. The new table has the dtype, the device
        and ``requires_grad`` of this one and passes no gradient to it: an optimizer has to be given the new parameter.

        Args:
            new_positions: ``max_positions`` of the new module, the prefix among them; or (rows, columns) of the new
                grid, whose ``max_positions`` is ``prefix + rows * columns``.
            prefix: Rows at the start of the table that are kept as they are: class tokens, registers, offsets.
            grid: (rows, columns) of the old grid. None: a square.
            mode: "linear" for a number of positions; "bicubic" or "bilinear" for a grid. None: linear, and bicubic.
            align_corners: The first and the last positions, rather than the outer edges of their cells, keep their
                places. Vision transformers in PyTorch say False.
            antialias: A smaller grid averages what it skips.

        Raises:
            ValueError: A size or a mode has no meaning for this table.

        Example:
            >>> table = posenc.nn.LearnedAbsolute(1 + 14 * 14, 768)  # a class token, 14 x 14 patches
            >>> table.resize((24, 24), prefix=1).max_positions
            577
        """
        table = _resized_positions(
            self.weight.detach(),
            _sizes("new_positions", new_positions),
            prefix=_sizes("prefix", prefix)[0],
            grid=None if grid is None else _sizes("grid", grid),
            mode=mode,
            align_corners=align_corners,
            antialias=antialias,
        )
        with torch.device("meta"):  # where nothing is drawn
            resized = LearnedAbsolute(table.shape[0], self.dim)
        resized.weight = torch.nn.Parameter(table, requires_grad=self.weight.requires_grad)
        return resized.train(self.training)

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.max_positions}, {self.dim}"

    def _add(self, x: Tensor, positions: Tensor | None, offset: int, offsets: Tensor | None) -> Tensor:
        return _add_learned(x, positions, self.weight, offset=offset, offsets=offsets)


def _sizes(name: str, value: int | tuple[int, int]) -> list[int]:
    sizes = value if isinstance(value, (tuple, list)) else (value,)
    return [plain_number("LearnedAbsolute.resize", name, size, int) for size in sizes]
