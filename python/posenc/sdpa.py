"""posenc in the place of ``torch.nn.functional.scaled_dot_product_attention`` on CPUs.

For models that call that function: ``torch.nn.MultiheadAttention``, ``torch.nn.TransformerEncoderLayer``, timm,
diffusers, transformers with ``attn_implementation="sdpa"``. Importing this module changes nothing. ::

    posenc.sdpa.activate()      # from now on, in the whole process
    posenc.sdpa.restore()

    with posenc.sdpa.use():     # or for a while
        ...

Served are dense CPU tensors of float64, float32, float16 and bfloat16, (.., H, T, D) or (B, T, D): plain and causal
calls, bool masks, float masks (gradients reach these), grouped heads (``enable_gqa=True``) and dropout, which draws
other weights than torch does. A call that posenc does not serve goes to torch as before: tensors that broadcast against
each other, forward-mode derivatives, vmap, other devices, arguments that torch refuses. Graphs that torch.compile
has made already stay as they are; new ones hold posenc's op.

The name "posenc" is also known to ``torch.nn.attention.activate_flash_attention_impl``, where torch has that function.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from posenc import _C

__all__ = ["activate", "is_active", "restore", "use"]

_NAME = "posenc"


class _Handle:
    """What torch calls when another implementation, or none, takes over."""

    def remove(self) -> None:
        _C.sdpa.restore()


def _register() -> _Handle:
    _C.sdpa.activate()
    return _Handle()


def _hook(name: str) -> Any:
    return getattr(torch.nn.attention, f"{name}_flash_attention_impl", None)


if _hook("register") is not None:
    torch.nn.attention.register_flash_attention_impl(_NAME, register_fn=_register)


def activate() -> None:
    """Serves ``scaled_dot_product_attention`` on CPUs from now on, in the whole process. Another implementation of
    torch's registry is no longer active afterwards."""
    if is_active():
        return
    if _hook("activate") is None:
        _C.sdpa.activate()
    else:
        torch.nn.attention.activate_flash_attention_impl(_NAME)


def restore() -> None:
    """Undoes :func:`activate`. Does nothing where posenc is not active."""
    if not is_active():
        return
    current = _hook("current")
    if current is not None and current() == _NAME:
        torch.nn.attention.restore_flash_attention_impl(_raise_warn=False)
    _C.sdpa.restore()


def is_active() -> bool:
    """Whether posenc serves ``scaled_dot_product_attention``."""
    return _C.sdpa.is_active()


@contextlib.contextmanager
def use() -> Iterator[None]:
    """Serves the calls within the block, of all threads; afterwards all is as it was before.

    Example:
        >>> layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
        >>> with posenc.sdpa.use():
        ...     y = layer(torch.randn(2, 10, 64))
    """
    current = _hook("current")
    before = None if current is None else current()
    was_active = is_active()
    activate()
    try:
        yield
    finally:
        if not was_active:
            restore()
            if before is not None:
                torch.nn.attention.activate_flash_attention_impl(before)
