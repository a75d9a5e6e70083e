"""What can be read of a mask function while a graph is traced, where closures do not show what they hold."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["window_of"]


class _Truth:
    """A bool where mask functions expect a tensor."""

    device = torch.device("cpu")

    def __init__(self, value: bool) -> None:
        self.value = value

    def __and__(self, other: "_Truth") -> "_Truth":
        return _Truth(self.value and other.value)

    def to(self, device: Any) -> "_Truth":
        return self


class _Place:
    """An index where mask functions expect a tensor."""

    def __init__(self, value: int) -> None:
        self.value = value

    def new_ones(self, shape: Any, dtype: Any = None) -> _Truth:
        return _Truth(True)

    def __sub__(self, other: Any) -> "_Place":
        return _Place(self.value - (other.value if isinstance(other, _Place) else other))

    def __abs__(self) -> "_Place":
        return _Place(abs(self.value))

    def __le__(self, other: Any) -> _Truth:
        return _Truth(self.value <= (other.value if isinstance(other, _Place) else other))

    def __gt__(self, other: "_Place") -> _Truth:
        return _Truth(self.value > other.value)

    def __ge__(self, other: int) -> _Truth:
        return _Truth(self.value >= other)


def window_of(function: Callable[..., Any], size: int) -> tuple[bool, tuple[int | None, int | None]] | None:
    """(causal, window) of an intersection of a sliding window and a causal or bidirectional mask, else None.

    Args:
        function: An intersection that holds no tensors.
        size: The window that the configuration gives.
    """

    def sees(query: int, key: int) -> bool:
        return function(None, None, _Place(query), _Place(key)).value

    far = 4 * size
    reach = [d for d in (size - 1, size) if sees(far, far - d)]
    if not sees(far, far) or sees(far, far - size - 1) or not reach:
        return None
    ahead = [d for d in (1, size, size + 1) if sees(far, far + d)]
    if not ahead and reach == [size - 1]:
        return True, (size - 1, None)
    if ahead == ([1, size] if size > 1 else [1, 1]) and reach == [size - 1, size]:
        return False, (size, size)
    return None
