"""The memory layouts that callers pass: each builder gives a (B, H, T, D) tensor of normal numbers."""

import torch


def _contiguous(shape, dtype):
    return torch.randn(shape, dtype=torch.float64).to(dtype)


def _transposed(shape, dtype):
    batch, heads, length, width = shape
    return _contiguous((batch, length, heads, width), dtype).transpose(1, 2)


def _sequence_first(shape, dtype):
    batch, heads, length, width = shape
    return _contiguous((length, batch, heads, width), dtype).permute(1, 2, 0, 3)


def _packed(shape, dtype):
    """Keys of a packed (B, T, 3, H, D) projection: a gap after each token."""
    batch, heads, length, width = shape
    return _contiguous((batch, length, 3, heads, width), dtype)[:, :, 1].transpose(1, 2)


def _wider_rows(shape, dtype):
    """The last D of D + 3 columns: rows neither adjacent nor aligned."""
    return _contiguous((*shape[:3], shape[3] + 3), dtype)[..., 3:]


def _every_second(shape, dtype):
    """Last stride 2."""
    return _contiguous((*shape[:3], 2 * shape[3]), dtype)[..., ::2]


def _columns_outside(shape, dtype):
    """Last stride T: stored as (B, H, D, T)."""
    batch, heads, length, width = shape
    return _contiguous((batch, heads, width, length), dtype).transpose(2, 3)


def _offset(shape, dtype):
    """Contiguous, one element into its storage, so no row is aligned."""
    size = shape[0] * shape[1] * shape[2] * shape[3]
    return _contiguous((size + 1,), dtype)[1:].view(shape)


def _expanded_heads(shape, dtype):
    return _contiguous((shape[0], 1, *shape[2:]), dtype).expand(shape)


def _expanded_batch(shape, dtype):
    return _contiguous((1, *shape[1:]), dtype).expand(shape)


def _one_number(shape, dtype):
    """Every stride 0, as the gradient of sum() is."""
    return _contiguous((1, 1, 1, 1), dtype).expand(shape)


DENSE = {
    "contiguous": _contiguous,
    "transposed": _transposed,
    "sequence_first": _sequence_first,
    "packed": _packed,
    "wider_rows": _wider_rows,
    "every_second": _every_second,
    "columns_outside": _columns_outside,
    "offset": _offset,
}
EXPANDED = {"expanded_heads": _expanded_heads, "expanded_batch": _expanded_batch, "one_number": _one_number}
LAYOUTS = DENSE | EXPANDED


def make(layout: str, shape, dtype) -> torch.Tensor:
    return LAYOUTS[layout](tuple(shape), dtype)


def with_strides_of(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A copy of values in a fresh tensor that has like's strides."""
    out = torch.empty_strided(like.shape, like.stride(), dtype=values.dtype)
    return out.copy_(values)
