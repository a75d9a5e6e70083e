import copy
import math

import torch
from torch import Tensor

from posenc.nn.base import check_dense
from posenc.nn.cache_checks import CacheChecks
from posenc.nn.options import plain_numbers
from posenc.nn.rotary import RotaryEncoding

_Snapshot = tuple[int, int, int, Tensor, Tensor, dict[str, Tensor], Tensor | None, int | None]


class KVCache(CacheChecks):
    """Keys and values of the tokens that one attention layer has seen, for decoding.

    Memory is allocated once; :meth:`append` returns views of it, which later calls extend or overwrite. The cache is
    for inference: tensors that require a gradient raise while gradients are recorded.

    :class:`Attention` stores keys after rotary encodings. Encodings that rotate keys themselves (ReRoPE, SelfExtend)
    get unrotated keys from the cache. What a score encoding makes of each token (:meth:`ScoreEncoding.token_state`,
    gate keys) is stored by name.

    With ``window`` the cache holds what queries with this window see, however many tokens come: the last ``window - 1``
    of earlier calls, and those of the last call. Tokens keep their numbers, so :attr:`length` counts all; the first
    :attr:`dropped` of them are gone. Where memory is full, what is held moves to the front of new memory.

    Args:
        batch_size: B.
        num_kv_heads: G.
        max_length: Tokens that fit; with ``window`` those held at once. A multiple of ``window`` seldom moves them.
        head_dim: D, the width of keys.
        value_dim: Dv, the width of values, where it is another (multi-head latent attention); None: ``head_dim``.
        window: Tokens that a query sees, its own included, as of :class:`Attention`; None: all.
        dtype: Of keys and values.
        device: Where they are; None: torch's default device.

    Raises:
        ValueError: A size is not positive, or ``window`` is larger than ``max_length``.
        TypeError: The dtype is not floating.

    Example:
        >>> cache = posenc.nn.KVCache(1, 8, 4096, 64)
        >>> with torch.no_grad():
        ...     y = attention(prompt, cache=cache)  # a posenc.nn.Attention
        ...     y = attention(next_token, cache=cache)
    """

    @plain_numbers
    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        max_length: int,
        head_dim: int,
        *,
        value_dim: int | None = None,
        window: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = {
            "batch_size": batch_size,
            "num_kv_heads": num_kv_heads,
            "max_length": max_length,
            "head_dim": head_dim,
        }
        values = {**sizes, "value_dim": head_dim if value_dim is None else value_dim}
        for name, value in values.items():
            if value < 1:
                raise ValueError(f"KVCache: expected {name} to be at least 1, but got {value}")
        del values["head_dim"]
        for factors in (sizes, values):
            if math.prod(factors.values()) > 2**46:
                raise ValueError(
                    f"KVCache: expected {' * '.join(factors)} to be at most {2**46}, but got {list(factors.values())}"
                )
        if window is not None and not 1 <= window <= max_length:
            raise ValueError(f"KVCache: expected window to be from 1 to max_length {max_length}, but got {window}")
        if not dtype.is_floating_point:
            raise TypeError(f"KVCache: expected a floating dtype, but got {dtype}")
        self.batch_size = batch_size
        self.num_kv_heads = num_kv_heads
        self.max_length = max_length
        self.head_dim = head_dim
        self.value_dim = values["value_dim"]
        self.window = window
        self._keys = _allocate((batch_size, num_kv_heads, max_length, head_dim), dtype, device)
        self._values = _allocate((batch_size, num_kv_heads, max_length, self.value_dim), dtype, device)
        self._length = self._dropped = self._origin = 0
        self._token_state: dict[str, Tensor] = {}
        self._positions: Tensor | None = None
        self._first_of_several_axes: int | None = None  # the first token whose positions had several axes

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self._length

    @property
    def dropped(self) -> int:
        """How many of them have left the window; views begin with the first that has not."""
        return self._dropped

    @property
    def keys(self) -> Tensor:
        """View (B, G, length - dropped, D)."""
        return self._held(self._keys)

    @property
    def values(self) -> Tensor:
        """View (B, G, length - dropped, Dv)."""
        return self._held(self._values)

    @property
    def token_state(self) -> dict[str, Tensor]:
        """Views (B, G, length - dropped, D) or (B, heads, length - dropped) of what tokens came with, by name."""
        return {name: self._held(stored) for name, stored in self._token_state.items()}

    @property
    def gate_keys(self) -> Tensor | None:
        """View (B, G, length - dropped, D) of ``gate_key``, where tokens came with it; else None."""
        return self.token_state.get("gate_key")

    @property
    def log_decay(self) -> Tensor | None:
        """View (B, H, length - dropped), where tokens came with decays: float32 (float64 in a float64 cache)."""
        return self.token_state.get("log_decay")

    @property
    def positions(self) -> Tensor | None:
        """View (B, length - dropped), or None where no token came with a position.

        Integer; float32 where all came as float32 or narrower; else float64, which holds whole numbers to 2**53
        exactly.
        """
        return None if self._positions is None else self._held(self._positions)

    def next_positions(self, tokens: int) -> Tensor | None:
        """Positions (B, tokens) of new tokens that come without: in each row those that follow its largest.

        None where no token came with a position: new ones then count by their place in the cache.

        Raises:
            ValueError: Cached positions are floating or have several axes, so that nothing says which come next.
        """
        none = self._positions is None and self._first_of_several_axes is None
        if none or self._length == 0 or tokens == 0:
            return None
        if self._first_of_several_axes is not None:
            _raise_unknown("have several axes")
        known = self.positions
        if known is None:
            return None
        if known.is_floating_point():
            _raise_unknown("are floating")
        return known.amax(1, keepdim=True) + torch.arange(1, tokens + 1, device=self.device)

    def append(
        self, k: Tensor, v: Tensor, *, positions: Tensor | None = None, **state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Stores new tokens and returns :attr:`keys` and :attr:`values`, of all that have not left the window.

        Args:
            k: (B, G, T, D), of the cache's dtype and on its device.
            v: The same, (B, G, T, Dv).
            positions: (T) or (B, T), integer or floating. None: :meth:`next_positions`. (A, B, T), over several axes,
                is not stored, but later tokens then need positions too.
            **state: Per-token state of score encodings by name, such as ``gate_key`` of CoPE and ``log_decay`` of
                ForgettingBias; each with every token or with none. (B, G, T, D), as keys, or (B, heads, T), float32
                (float64 in a float64 cache), with the number of heads of the first tokens.

        Raises:
            ValueError: A shape or a device does not fit, or more tokens come than fit. Nothing is stored then.
            TypeError: A dtype does not fit.
            RuntimeError: A tensor requires a gradient while gradients are recorded.
        """
        check_dense("KVCache", "k", k)
        if k.dim() != 4:
            raise ValueError(f"KVCache: expected k of shape (batch, heads, tokens, head_dim), but got {list(k.shape)}")
        tokens = k.shape[2]
        self._check(k, "k", tokens, self.head_dim)
        self._check(v, "v", tokens, self.value_dim)
        new = {name: x for name, x in state.items() if x is not None}
        for name in {**self._token_state, **new}:
            self._check_complete(name, name in new)
        for name, x in new.items():
            self._check_state(x, name, tokens)
        if positions is None:
            positions = self.next_positions(tokens)
        else:
            self._check_positions(positions, tokens)
        start, dropped, origin = self._length, self._dropped, self._origin
        end = start + tokens
        if self.window is not None and tokens > 0:
            dropped = max(dropped, start - (self.window - 1))
        if end - dropped > self.max_length:
            raise ValueError(
                f"KVCache: expected at most max_length {self.max_length} tokens, but got {tokens} new after "
                f"{start - dropped} cached, {end - dropped} in all"
            )
        if start == 0:  # an empty call before may have left some, which bind nobody
            self._token_state, self._positions, self._first_of_several_axes = {}, None, None
        if self.window is not None:
            self._dropped = dropped
            if end - origin > self.max_length:
                self._renew()
                origin = dropped
        place = slice(start - origin, end - origin)
        self._keys[:, :, place].copy_(k)
        self._values[:, :, place].copy_(v)
        for name, x in new.items():
            if name not in self._token_state:
                shape = (self.batch_size, x.shape[1], self.max_length, *x.shape[3:])
                self._token_state[name] = _allocate(shape, x.dtype, self.device)
            self._token_state[name][:, :, place].copy_(x)
        self._store_positions(positions, start, end)
        self._length = end
        held = slice(dropped - origin, end - origin)
        return self._keys[:, :, held], self._values[:, :, held]

    def reset(self) -> None:
        """Forgets all tokens."""
        self.crop(0)

    def crop(self, length: int) -> None:
        """Forgets all but the first ``length`` tokens; the last ``-length`` ones where it is negative.

        With ``window``, tokens of the last call can be forgotten, or all, once earlier ones are gone.

        Raises:
            ValueError: ``length`` is not from ``-self.length`` to :attr:`length`, or the window of the next token would
                reach back to tokens that are gone.
            TypeError: ``length`` is no int.
        """
        if not isinstance(length, int):
            raise TypeError(f"KVCache: expected to crop to a length that is an int, but got {length!r}")
        kept = length if length >= 0 else self._length + length
        if not 0 <= kept <= self._length:
            raise ValueError(
                f"KVCache: expected to crop to a length from 0 to {self._length}, or by one from -{self._length}, but "
                f"got {length}"
            )
        first = self._dropped + max(1, (self.window or 1) - 1)
        if self._dropped > 0 and 0 < kept < first:
            raise ValueError(
                f"KVCache: expected to crop to a length from {first} to {self._length}, or to 0, as the window of the "
                f"next token reaches no further back, but got {length}"
            )
        self._shorten(kept)

    def evict(self, start: int, count: int, rotary: RotaryEncoding | None = None) -> None:
        """Forgets ``count`` tokens from token ``start`` on; later ones move up (StreamingLLM, arXiv 2309.17453).

        The cache is then as if it had been filled with the remaining tokens alone, each at its new place: stored
        positions of those that move fall by ``count``, and ``rotary`` turns their keys, and gate keys, back by as much.
        In float16 and bfloat16 each eviction rounds these keys anew.

        Args:
            start: The first token to forget.
            count: How many.
            rotary: The encoding that rotated the keys, one whose positions have one axis. None: keys stay as they are,
                which suits layers without rotary encodings, and those that cache unrotated keys (ReRoPE, SelfExtend).

        Raises:
            ValueError: The tokens are not all in the cache, others have left its window already, or the positions of
                ``rotary`` have several axes.
            TypeError: ``start`` or ``count`` is no int, or ``rotary`` no rotary encoding.
            NotImplementedError: ``rotary`` has no :meth:`RotaryEncoding.shift`. Nothing is changed in all these cases.

        Example:
            >>> cache = posenc.nn.KVCache(1, 2, 8, 4)
            >>> k = torch.randn(1, 2, 8, 4)
            >>> _ = cache.append(k, k)
            >>> cache.evict(4, 3, posenc.nn.Rotary(4))  # keeps tokens 0 to 3 and the last
            >>> cache.length
            5
        """
        self._check_eviction(start, count, rotary)
        length, gate_key = self._length - count, self._token_state.get("gate_key")
        with torch.no_grad():
            moves = []
            for stored in self._stored():
                later, place = self._held(stored, start + count, self._length), self._held(stored, start, length)
                if stored is self._positions:
                    moves.append((place, later - count))
                elif rotary is not None and (stored is self._keys or stored is gate_key):
                    moves.append((place, rotary.shift(later, -count)))
                else:
                    moves.append((place, later.clone()))
            for place, moved in moves:
                place.copy_(moved)
        if self._first_of_several_axes is not None and self._first_of_several_axes > start:
            self._first_of_several_axes = max(start, self._first_of_several_axes - count)
        self._shorten(length)

    def reorder(self, index: Tensor) -> None:
        """Row b becomes what row ``index[b]`` was: keys, values, token state and positions, as beam search needs.

        Args:
            index: (B), int64 or int32; rows may come more than once, or not at all.

        Raises:
            ValueError: Another shape or device, or a row that is not there. Nothing is changed then.
            TypeError: Another dtype.
        """
        self._check_index(index)
        for stored in self._stored():
            held = self._held(stored)
            held.copy_(held.index_select(0, index))

    def copy(self) -> "KVCache":
        """An independent cache with the same tokens and room."""
        twin = copy.copy(self)
        twin._renew()
        return twin

    def _stored(self) -> list[Tensor]:
        """All memory."""
        positions = [] if self._positions is None else [self._positions]
        return [self._keys, self._values, *self._token_state.values(), *positions]

    def _held(self, stored: Tensor, start: int | None = None, end: int | None = None) -> Tensor:
        """The part of memory for tokens ``start`` to ``end``."""
        first, last = self._dropped if start is None else start, self._length if end is None else end
        part = slice(first - self._origin, last - self._origin)
        return stored[:, part] if stored.dim() == 2 else stored[:, :, part]

    def _shorten(self, length: int) -> None:
        self._length = length
        if self._first_of_several_axes is not None and self._first_of_several_axes >= length:
            self._first_of_several_axes = None
        if length == 0:
            self._token_state, self._positions = {}, None
            self._dropped = self._origin = 0

    def _renew(self) -> None:
        """Moves the tokens to the front of new memory: views, and what :meth:`_snapshot` gave, stay as they are."""
        self._keys, self._values = self._moved(self._keys), self._moved(self._values)
        self._token_state = {name: self._moved(stored) for name, stored in self._token_state.items()}
        self._positions = None if self._positions is None else self._moved(self._positions)
        self._origin = self._dropped

    def _moved(self, stored: Tensor) -> Tensor:
        held, new = self._held(stored), _allocate(tuple(stored.shape), stored.dtype, self.device)
        axis = min(2, stored.dim() - 1)
        new.narrow(axis, 0, held.shape[axis]).copy_(held)
        return new

    def _snapshot(self) -> _Snapshot:
        """What :meth:`_restore` goes back to. Later tokens change none of it: they go to later columns."""
        return (
            self._length,
            self._dropped,
            self._origin,
            self._keys,
            self._values,
            dict(self._token_state),
            self._positions,
            self._first_of_several_axes,
        )

    def _restore(self, snapshot: _Snapshot) -> None:
        (
            self._length,
            self._dropped,
            self._origin,
            self._keys,
            self._values,
            self._token_state,
            self._positions,
            self._first_of_several_axes,
        ) = snapshot

    def __repr__(self) -> str:
        return (
            f"KVCache({self.batch_size}, {self.num_kv_heads}, {self.max_length}, {self.head_dim}, "
            f"value_dim={self.value_dim}, window={self.window}, dtype={self.dtype}, device={str(self.device)!r}, "
            f"length={self._length})"
        )

    def _store_positions(self, positions: Tensor | None, start: int, end: int) -> None:
        if positions is None or start == end:
            return
        if positions.dim() == 3:
            if self._first_of_several_axes is None:
                self._first_of_several_axes = start
            return
        whole = not positions.is_floating_point()
        dtype = torch.int64 if whole else torch.promote_types(positions.dtype, torch.float32)
        if self._positions is None:
            first = dtype if start == 0 else torch.int64
            self._positions = _allocate((self.batch_size, self.max_length), first, self.device)
            self._held(self._positions).copy_(torch.arange(self._dropped, start, device=self.device))
        if self._positions.dtype != dtype:
            # float32 would round whole numbers from 2**24 on, be they there already or new.
            with torch.inference_mode(False), torch.no_grad():
                self._positions = self._positions.to(torch.float64)
        self._held(self._positions, start, end).copy_(positions.detach())


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """Memory that stays writable outside an inference mode in which it may be made."""
    with torch.inference_mode(False):
        return torch.empty(shape, dtype=dtype, device=device)


def _raise_unknown(kind: str) -> None:
    raise ValueError(
        f"KVCache: expected positions of the new tokens, since those of cached ones {kind} and nothing says which come "
        "next: pass positions"
    )
