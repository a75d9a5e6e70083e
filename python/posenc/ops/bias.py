"""Numbers that additive score encodings are made of; :mod:`posenc.ops` offers them."""

import torch
from torch import Tensor

_alibi_slopes = torch.ops.posenc.alibi_slopes.default
_t5_bucket = torch.ops.posenc.t5_bucket.default


def alibi_slopes(
    num_heads: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """The slopes of ALiBi (arXiv 2108.12409, section 3) for all query heads of a model.

    ``2 ** (-8h/H)`` for h = 1 .. H where H is a power of two; else those of the next lower power of two, followed by
    every other one of twice that power. Not monotone, and in the order of heads: under tensor parallelism each rank
    takes its share of this list. Computed in float64 and rounded once.

    Args:
        num_heads: H, of the whole model.
        dtype: A floating type.
        device: None: the CPU.

    Shape:
        -> (H)

    Raises:
        ValueError: ``num_heads`` is below 1 or above 2**24.
        TypeError: ``dtype`` is no floating type.

    Example:
        >>> posenc.ops.alibi_slopes(3)
        tensor([0.0625, 0.0039, 0.2500])
    """
    return _alibi_slopes(num_heads, dtype=dtype, device=device)


def t5_bucket(
    relative_position: Tensor, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:
    """The buckets of T5 (arXiv 1910.10683, section 2.1) for ``relative_position = key - query``.

    Each distance below half of the number of buckets has a bucket of its own. Then buckets widen in proportion to the
    distance, up to ``max_distance``; the last one holds all larger distances. Computed by integer comparison, so equal
    on all devices.

    Args:
        relative_position: In tokens; any integer type and shape.
        num_buckets: How many there are; even where ``bidirectional``.
        max_distance: In tokens.
        bidirectional: Keys before the query have the lower half of the buckets, keys after it the upper half (T5's
            encoder). False: all keys after the query share bucket 0 with distance 0 (T5's decoder).

    Shape:
        any -> the same, int64

    Raises:
        ValueError: ``num_buckets`` and ``max_distance`` do not fit, or ``num_buckets`` is above 2**24.
        TypeError: ``relative_position`` is no integer type.

    Example:
        >>> posenc.ops.t5_bucket(torch.tensor([-1, 0, 1, 5]))
        tensor([ 1,  0, 17, 21])
    """
    return _t5_bucket(
        relative_position, num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional
    )
