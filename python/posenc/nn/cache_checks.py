from typing import Any

import torch
from torch import Tensor

from posenc.nn.base import check_dense
from posenc.nn.rotary import RotaryEncoding


class Count:
    """A number of a cache, kept as a size of an empty tensor: compiled graphs take sizes as they come.

    An int of what a module holds is a constant of the graph, which would be compiled anew at each length. Sizes 0 and 1
    are constants too.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{name}_as_size"

    def __get__(self, cache: Any, owner: type) -> int:
        return getattr(cache, self._name).shape[0] - 2

    def __set__(self, cache: Any, count: int) -> None:
        setattr(cache, self._name, torch.empty(count + 2, 0, device=cache.device))


class CacheChecks:
    """The counts of :class:`KVCache`, and what it refuses, as the C++ one does.

    Compiled graphs need these checks in Python: a pybind call would break the graph.
    """

    batch_size: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    # Of tokens: how many came, the first that is held, and the one whose place is the first in memory.
    _length = Count()
    _dropped = Count()
    _origin = Count()
    _keys: Tensor
    _token_state: dict[str, Tensor]
    _positions: Tensor | None
    _first_of_several_axes: int | None

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self._keys.dtype

    @property
    def device(self) -> torch.device:
        """Where keys and values are."""
        return self._keys.device

    def _check(self, x: Tensor, name: str, tokens: int, width: int) -> None:
        check_dense("KVCache", name, x)
        shape = (self.batch_size, self.num_kv_heads, tokens, width)
        if x.shape != shape:
            raise ValueError(f"KVCache: expected {name} of shape {list(shape)}, but got {list(x.shape)}")
        if x.dtype != self.dtype:
            raise TypeError(f"KVCache: expected {name} of the cache's dtype {self.dtype}, but got {x.dtype}")
        self._check_place(x, name)

    def _check_state(self, x: Tensor, name: str, tokens: int) -> None:
        if x.dim() == 4:
            self._check(x, name, tokens, self.head_dim)
            return
        stored = self._token_state.get(name) if self._length > 0 else None
        heads = "heads" if stored is None else stored.shape[1]
        fits = x.dim() == 3 and x.shape[0] == self.batch_size and x.shape[2] == tokens
        if not fits or (stored is not None and x.shape[1] != heads):
            raise ValueError(
                f"KVCache: expected {name} of shape ({self.batch_size}, {heads}, {tokens}), but got {list(x.shape)}"
            )
        # They may be summed over all tokens.
        dtype = torch.float64 if self.dtype == torch.float64 else torch.float32
        if x.dtype != dtype:
            raise TypeError(f"KVCache: expected {name} to be {dtype} in a cache of {self.dtype}, but got {x.dtype}")
        self._check_place(x, name)

    def _check_complete(self, name: str, given: bool) -> None:
        stored = name in self._token_state
        if self._length > 0 and given != stored:
            came = "with" if stored else "without"
            raise ValueError(f"KVCache: expected {name} with every token or with none, but the cached ones came {came}")

    def _check_place(self, x: Tensor, name: str) -> None:
        if x.device != self.device:
            raise ValueError(f"KVCache: expected {name} on the cache's device {self.device}, but got {x.device}")
        if torch.is_grad_enabled() and x.requires_grad:
            raise RuntimeError(
                f"KVCache: a cache is for inference and passes no gradient on, but {name} requires one: call within "
                "torch.no_grad(), or detach it"
            )

    def _check_positions(self, positions: Tensor, tokens: int) -> None:
        shape = tuple(positions.shape)
        rows = (1, self.batch_size)
        if shape[-1:] != (tokens,) or len(shape) > 3 or (len(shape) > 1 and shape[-2] not in rows):
            raise ValueError(
                f"KVCache: expected positions of shape ({tokens}) or ({self.batch_size}, {tokens}), or over several "
                f"axes (axes, {self.batch_size}, {tokens}), but got {list(shape)}"
            )
        one = self._positions is not None
        if self._length > 0 and (one if len(shape) == 3 else self._first_of_several_axes is not None):
            raise ValueError(
                f"KVCache: expected positions with {'one axis' if one else 'several axes'}, as cached ones have, but "
                f"got {list(shape)}"
            )
        if positions.dtype == torch.bool or positions.dtype.is_complex:
            raise TypeError(f"KVCache: expected positions of an integer or floating dtype, but got {positions.dtype}")
        if positions.device != self.device:
            raise ValueError(
                f"KVCache: expected positions on the cache's device {self.device}, but got {positions.device}"
            )

    def _check_eviction(self, start: int, count: int, rotary: RotaryEncoding | None) -> None:
        for name, value in (("start", start), ("count", count)):
            if not isinstance(value, int):
                raise TypeError(f"KVCache: expected {name} to be an int, but got {value!r}")
        if not (start >= 0 and 0 <= count <= self._length - start):
            raise ValueError(
                f"KVCache: expected to evict tokens from 0 to {self._length}, but got start {start} and count {count}"
            )
        if self._dropped > 0:
            raise ValueError(
                f"KVCache: expected to evict before tokens leave the window {self.window}, but {self._dropped} "
                "have left it"
            )
        if rotary is None:
            return
        if not isinstance(rotary, RotaryEncoding):
            raise TypeError(f"KVCache: expected rotary to be a rotary encoding, but got {type(rotary).__name__}")
        if rotary.position_axes is not None:
            raise ValueError(
                f"KVCache: expected rotary to have positions on one axis, but got {type(rotary).__name__} with "
                f"{rotary.position_axes}"
            )

    def _check_index(self, index: Tensor) -> None:
        if index.shape != (self.batch_size,):
            raise ValueError(
                f"KVCache: expected index of shape [{self.batch_size}], a row for each, but got {list(index.shape)}"
            )
        if index.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"KVCache: expected index to be int64 or int32, but got {index.dtype}")
        if index.device != self.device:
            raise ValueError(f"KVCache: expected index on the cache's device {self.device}, but got {index.device}")
        if index.is_meta:
            return
        for row in index.tolist():
            if not 0 <= row < self.batch_size:
                raise ValueError(f"KVCache: expected index to name rows from 0 to {self.batch_size - 1}, but got {row}")
