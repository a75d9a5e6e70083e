"""Who sees whom in a batch of tokens: as arguments of :func:`posenc.ops.attention`, as a mask where one is needed."""

import copy
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

__all__ = ["LazyMask", "TracedMask", "Visibility", "described"]


@dataclass
class Visibility:
    """Which of Tk keys each of Tq queries sees; indices count from the first key.

    Attributes:
        shape: (B, 1, Tq, Tk).
        causal: Query i sees keys up to its own place.
        window: (left, right) as :func:`posenc.ops.attention` takes it.
        q_start: () or (B), the place of the first query; None: queries are the last Tq tokens.
        key_mask: (B, Tk) bool, False hides a key.
        segment_ids, q_segment_ids: (B, Tk) and (B, Tq): queries see the keys of their own segment only.
        block_ids: (B, Tk): tokens of one block see each other, whatever ``causal`` and ``window`` say.
        attn_mask: Bool, broadcastable to ``shape``: what the other fields cannot say.
    """

    shape: tuple[int, ...]
    device: torch.device
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    q_start: Tensor | None = None
    key_mask: Tensor | None = None
    segment_ids: Tensor | None = None
    q_segment_ids: Tensor | None = None
    block_ids: Tensor | None = None
    attn_mask: Tensor | None = None

    def call(self) -> dict[str, Any]:
        """The keyword arguments of :func:`posenc.ops.attention` that say the same."""
        call: dict[str, Any] = {name: value for name, value in self.tensors().items()}
        if self.causal:
            call["is_causal"] = True
        if self.window is not None:
            call["window"] = self.window
        return call

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are tensors, by name."""
        values = ((name, getattr(self, name)) for name in _TENSORS)
        return {name: value for name, value in values if value is not None}

    def visible(self) -> Tensor:
        """(B, 1, Tq, Tk), True where a query sees a key."""
        queries, keys = self.shape[2:]
        k_places = torch.arange(keys, device=self.device)
        q_places = torch.arange(queries, device=self.device)
        if self.q_start is None:
            q_places = q_places + (keys - queries)
        else:
            q_places = self.q_start.reshape(-1, 1, 1, 1) + q_places.view(-1, 1)
        distance = q_places.reshape(-1, 1, queries, 1) - k_places
        seen = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            seen = seen & (distance >= 0)
        left, right = self.window or (None, None)
        if left is not None:
            seen = seen & (distance <= left)
        if right is not None:
            seen = seen & (distance >= -right)
        if self.block_ids is not None:
            block = _last(self.block_ids, queries)
            seen = seen | ((block == self.block_ids[:, None, None, :]) & (block >= 0))
        if self.segment_ids is not None:
            own = _last(self.segment_ids if self.q_segment_ids is None else self.q_segment_ids, queries)
            seen = seen & (own == self.segment_ids[:, None, None, :])
        if self.key_mask is not None:
            seen = seen & self.key_mask[:, None, None, :]
        if self.attn_mask is not None:
            seen = seen & self.attn_mask
        return seen.expand(self.shape)

    def additive(self, dtype: torch.dtype) -> Tensor:
        """The mask that eager attention adds to scores: 0 where a key is seen, else the lowest number of ``dtype``."""
        zero = torch.zeros((), dtype=dtype, device=self.device)
        return torch.where(self.visible(), zero, torch.finfo(dtype).min)


_TENSORS = tuple(field.name for field in fields(Visibility) if field.type == Tensor | None)


def _last(ids: Tensor, queries: int) -> Tensor:
    """The ids of the last tokens, (B, 1, Tq, 1)."""
    return ids[:, ids.shape[1] - queries :][:, None, :, None]


class LazyMask(Tensor):
    """A :class:`Visibility` as the float mask (B, 1, Tq, Tk) that eager attention adds.

    The mask is made when an operation touches it, so that models which slice it, add to it or test its dtype find what
    they would find without posenc. posenc's attention reads ``visibility`` instead, also inside a compiled graph whose
    input it is.
    """

    visibility: Visibility
    call: dict[str, Any]
    # Its fields once more, as a graph whose input the mask is follows tensors and constants alone.
    causal: bool
    window: tuple[int | None, int | None] | None
    q_start: Tensor | None
    key_mask: Tensor | None
    segment_ids: Tensor | None
    q_segment_ids: Tensor | None
    block_ids: Tensor | None
    attn_mask: Tensor | None
    _made: Tensor | None

    @staticmethod
    def __new__(cls, visibility: Visibility, dtype: torch.dtype) -> "LazyMask":
        self = torch.Tensor._make_wrapper_subclass(cls, visibility.shape, dtype=dtype, device=visibility.device)
        self.visibility, self.causal, self.window = visibility, visibility.causal, visibility.window
        for name in _TENSORS:
            setattr(self, name, getattr(visibility, name))
        self.call = visibility.call()  # once for all layers
        self._made = None  # the mask, once something looked at it
        return self

    # Results are plain tensors.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LazyMask({list(self.shape)}, {', '.join(self.visibility.call())})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "LazyMask":
        return LazyMask(copy.deepcopy(self.visibility, memo), self.dtype)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return LazyMask, (self.visibility, self.dtype)

    def numpy(self, *, force: bool = False) -> Any:
        """The mask as an array."""
        return self._mask().numpy(force=force)

    def tolist(self) -> Any:
        """The mask as lists."""
        return self._mask().tolist()

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        described = self.visibility
        names = tuple(described.tensors())
        return list(names), (names, self.dtype, described.device, described.causal, described.window)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], options: Any, size: Any, stride: Any) -> "LazyMask":
        names, dtype, device, causal, window = options
        return LazyMask(Visibility(tuple(size), device, causal, window, **{name: inner[name] for name in names}), dtype)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def made(x: Any) -> Any:
            return x._mask() if isinstance(x, LazyMask) else x

        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default) and isinstance(args[0], LazyMask):
            return LazyMask(args[0].visibility, args[0].dtype)
        return func(*tree_map(made, args), **tree_map(made, kwargs or {}))

    def _mask(self) -> Tensor:
        if self._made is not None:
            return self._made
        mask = self.visibility.additive(self.dtype)
        if type(mask) is Tensor and not torch.compiler.is_compiling():
            self._made = mask  # for the layers to come
        return mask


class TracedMask:
    """A :class:`Visibility` in a graph while it is traced, where no tensor of an own class can be made.

    Anything but posenc's attention that looks at it finds the float mask of :class:`LazyMask`.
    """

    def __init__(self, visibility: Visibility, dtype: torch.dtype) -> None:
        self.visibility, self.dtype = visibility, dtype
        self.shape, self.device, self.ndim = torch.Size(visibility.shape), visibility.device, 4

    def made(self) -> Tensor:
        """The mask as a tensor."""
        return self.visibility.additive(self.dtype)

    def contiguous(self) -> "TracedMask":
        """Itself."""
        return self

    def dim(self) -> int:
        """4."""
        return 4

    def size(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self.shape if dim is None else self.shape[dim]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.made(), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = [x.made() if isinstance(x, TracedMask) else x for x in args]
        named = {name: x.made() if isinstance(x, TracedMask) else x for name, x in (kwargs or {}).items()}
        return func(*made, **named)


def _forwards(name: str) -> Any:
    def method(self: TracedMask, *args: Any) -> Any:
        return getattr(self.made(), name)(*args)

    return method


_OPERATORS = (
    *("getitem", "add", "radd", "sub", "rsub", "mul", "rmul", "and", "or", "invert", "neg"),
    *("eq", "ne", "lt", "le", "gt", "ge", "len", "iter"),
)
for _name in _OPERATORS:
    setattr(TracedMask, f"__{_name}__", _forwards(f"__{_name}__"))


def described(mask: Any) -> Visibility | None:
    """What a mask of posenc says, None for any other mask."""
    if isinstance(mask, TracedMask):
        return mask.visibility
    if not isinstance(mask, LazyMask):
        return None
    if not torch.compiler.is_compiling():
        return mask.visibility
    return Visibility(
        tuple(mask.shape),
        mask.device,
        mask.causal,
        mask.window,
        mask.q_start,
        mask.key_mask,
        mask.segment_ids,
        mask.q_segment_ids,
        mask.block_ids,
        mask.attn_mask,
    )
