"""Positions and segments of padded, packed and multimodal sequences."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc import _C

__all__ = [
    "multimodal_positions",
    "positions_from_cu_seqlens",
    "positions_from_mask",
    "segments_from_cu_seqlens",
]


def positions_from_mask(mask: Tensor) -> Tensor:
    """Counts positions over the tokens that a mask shows, row by row; padding on either side gets 0.

    Args:
        mask: bool or integer, nonzero at tokens, as the `attention_mask` of transformers.

    Shape:
        mask: (T) or (B, T). Result: the same, int64.

    Raises:
        ValueError: Another shape.
        TypeError: A floating mask.

    Example:
        >>> posenc.positions.positions_from_mask(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
        tensor([[0, 0, 0, 1, 2],
                [0, 1, 2, 3, 4]])
    """
    return torch.ops.posenc.positions_from_mask(mask)


def positions_from_cu_seqlens(cu_seqlens: Tensor, total: int) -> Tensor:
    """Counts positions in sequences packed one after the other, from 0 in each.

    Reads the values of `cu_seqlens`.

    Args:
        cu_seqlens: First token of each sequence, and `total` at the end.
        total: Tokens in the pack.

    Shape:
        cu_seqlens: (N + 1), integer. Result: (total), int64, on the same device.

    Raises:
        ValueError: `cu_seqlens` does not run from 0 to `total` without decreasing.
        TypeError: `cu_seqlens` is not integer.

    Example:
        >>> posenc.positions.positions_from_cu_seqlens(torch.tensor([0, 2, 5]), 5)
        tensor([0, 1, 0, 1, 2])
    """
    return torch.ops.posenc.positions_from_cu_seqlens(cu_seqlens, total)


def segments_from_cu_seqlens(cu_seqlens: Tensor, total: int) -> Tensor:
    """Numbers the sequences of a pack: for each token the index of its sequence, for `segment_ids`.

    Args, Shape and Raises as `positions_from_cu_seqlens`.

    Example:
        >>> posenc.positions.segments_from_cu_seqlens(torch.tensor([0, 2, 5]), 5)
        tensor([0, 0, 1, 1, 1])
    """
    return torch.ops.posenc.segments_from_cu_seqlens(cu_seqlens, total)


def multimodal_positions(spans: Sequence[tuple[str, int | tuple[int, int, int]]]) -> Tensor:
    """Builds positions on the axes time, height and width for text, images and videos, as Qwen2-VL has them.

    Text counts on all axes alike. A grid starts where text would go on and counts its frames, rows and columns; the
    next span starts one above the largest position so far (arXiv 2409.12191).

    Args:
        spans: ("text", length), ("image", (t, h, w)) or ("video", (t, h, w)) in order, sides in patches.

    Shape:
        Result: (3, T), int64, on the CPU; T the tokens of all spans.

    Raises:
        ValueError: Another kind of span, a negative length, a side below 1, more than 2**31 tokens.

    Example:
        >>> posenc.positions.multimodal_positions([("text", 2), ("image", (1, 2, 2)), ("text", 1)])
        tensor([[0, 1, 2, 2, 2, 2, 4],
                [0, 1, 2, 2, 3, 3, 4],
                [0, 1, 2, 3, 2, 3, 4]])
    """
    return _C.positions.multimodal_positions(spans)
