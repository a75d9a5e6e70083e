from typing import Any, overload

import torch
from torch import Tensor

from posenc import _C
from posenc.nn.base import Encoding, assign, check_dense, fitting, on_device_of
from posenc.nn.options import plain_numbers
from posenc.ops.rotary import changed_options
from posenc.scaling import Scaling

_rotary = torch.ops.posenc.rotary.default
_rotary_qk = torch.ops.posenc.rotary_qk.default


class RotaryEncoding(Encoding):
    """Base of the modules that rotate queries and keys.

    One of your own implements :meth:`forward`.

    Attributes:
        depends_on_call_length: The frequencies depend on the length of each call, so cached keys would not match later
            queries; :class:`Attention` then takes no cache.
        position_axes: A, where positions are (A, T) or (A, B, T), several axes; None where they are (T) or (B, T).
        head_dim: D, the width of a head that it was made for.
        num_heads: H, the query heads that it was made for; None or not there: any number.
    """

    depends_on_call_length = False
    position_axes: int | None = None
    num_heads: int | None

    @overload
    def forward(
        self,
        q: Tensor,
        k: None = None,
        positions: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        seq_len: int | None = None,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        positions: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        seq_len: int | None = None,
    ) -> tuple[Tensor, Tensor]: ...

    def forward(
        self,
        q: Tensor,
        k: Tensor | None = None,
        positions: Tensor | None = None,
        *,
        offset: int | Tensor = 0,
        seq_len: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotates ``q``, and ``k`` where given, by their positions.

        Args:
            q: (B, H, T, D).
            k: (B, G, T, D).
            positions: (T) or (B, T), or over several axes (A, T) or (A, B, T); integer or floating, in tokens. None:
                ``offset + arange(T)``.
            offset: First position where ``positions`` is None: an int, or an int tensor (B).
            seq_len: Length in tokens for length-dependent scalings, instead of the constructor's.
        """
        self._check_shape("q", q)
        return self._rotate(q, k, positions, offset, seq_len)

    def shift(self, key: Tensor, by: int) -> Tensor:
        """Keys (B, G, T, D) that were rotated, as they would be ``by`` tokens later (earlier where negative).

        A magnitude (YaRN's attention factor) is in the keys already, and is not applied again. :meth:`KVCache.evict`
        calls this.

        Raises:
            NotImplementedError: The encoding cannot do it; :class:`Rotary` and :class:`XPos` can.
            ValueError: The shape does not fit, or the rotation depended on the length of each call.
            TypeError: ``by`` is no int.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: keys that it has rotated cannot be shifted: it has no shift(key, by) of its own"
        )

    def _shifts(self, key: Tensor, by: int) -> Tensor:
        """``by`` for each of the checked keys, as positions."""
        if not isinstance(by, int):
            raise TypeError(f"{type(self).__name__}: expected to shift keys by an int, but got {by!r}")
        self._check_shape("key", key)
        return torch.full((key.shape[2],), by, device=key.device)

    def _check_shape(self, name: str, x: Tensor) -> None:
        if x.is_nested:
            check_dense(type(self).__name__, name, x)
        shape = x.shape
        if len(shape) != 4 or shape[3] != self.head_dim:
            raise ValueError(
                f"{type(self).__name__}: expected {name} of shape (batch, heads, length, head_dim) with head_dim "
                f"{self.head_dim}, but got {list(shape)}"
            )

    head_dim: int
    #: Keyword arguments of the op that differ from its defaults.
    _op_options: dict[str, Any]

    def _rotate(
        self, q: Tensor, k: Tensor | None, positions: Tensor | None, offset: int | Tensor, seq_len: int | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        # Calls the dispatcher ops directly: at T = 1 every further Python call shows in the time.
        inv_freq = self._frequencies_for(q, positions, offset, seq_len)
        if isinstance(offset, Tensor):
            if k is None:
                return _rotary(q, positions, inv_freq, offsets=offset, **self._op_options)
            return _rotary_qk(q, k, positions, inv_freq, offsets=offset, **self._op_options)
        if k is None:
            return _rotary(q, positions, inv_freq, offset=offset, **self._op_options)
        return _rotary_qk(q, k, positions, inv_freq, offset=offset, **self._op_options)

    def _frequencies_for(
        self, q: Tensor, positions: Tensor | None, offset: int | Tensor, seq_len: int | None
    ) -> Tensor:
        raise NotImplementedError


class ScaledRotaryEncoding(RotaryEncoding):
    """Base of the rotary modules that take a scaling.

    With a scaling that depends on the length (DynamicNTK, LongRoPE) each call uses, in this order: its own ``seq_len``,
    the constructor's, ``offset + T``, or with explicit positions the largest one + 1 (which reads data, and so breaks a
    compiled graph).
    """

    inv_freq: Tensor
    rotary_dim: int
    base: float
    exact: bool
    seq_len: int | None
    learnable = False

    def _set_scaling(self, scaling: Scaling) -> None:
        self.scaling = scaling
        self._encoded_scaling = _C.scaling.encode(scaling) if _C.scaling.depends_on_length(scaling) else None
        self.depends_on_call_length = self._encoded_scaling is not None and self.seq_len is None

    def _scaling_parts(self) -> list[str]:
        """What extra_repr says of the scaling."""
        parts = [] if self.scaling is None else [f"scaling={self.scaling!r}"]
        parts.append(f"exact={self.exact}")
        return parts if self.seq_len is None else [*parts, f"seq_len={self.seq_len}"]

    def _frequencies_for(
        self, q: Tensor, positions: Tensor | None, offset: int | Tensor, seq_len: int | None
    ) -> Tensor:
        inv_freq = self.inv_freq
        if type(q) is not Tensor:
            inv_freq = fitting(q, inv_freq)
        if self.learnable:
            inv_freq = at_least_float(inv_freq)
        if seq_len is not None and seq_len < 1:
            raise ValueError(f"{type(self).__name__}: expected seq_len to be at least 1, but got {seq_len}")
        if self._encoded_scaling is not None:
            if seq_len is None:
                seq_len = (
                    self.seq_len if self.seq_len is not None else _length(type(self).__name__, q, positions, offset)
                )
            inv_freq = torch.ops.posenc.scaled_inv_freq(
                inv_freq, self._encoded_scaling, self.rotary_dim, self.base, seq_len, self.exact
            )
        return on_device_of(q, inv_freq)


class Rotary(ScaledRotaryEncoding):
    """Rotary position embedding (RoFormer, arXiv 2104.09864) with every context extension of :mod:`posenc.scaling`.

    Frequencies are derived from the options in float64 and are neither parameters nor buffers, so ``.half()``,
    ``.to()`` and ``to_empty()`` leave them exact. A module without learnable frequencies has an empty ``state_dict``.

    With a scaling that depends on the length (DynamicNTK, LongRoPE) each call uses, in this order: its own ``seq_len``,
    the constructor's, ``offset + T``, or with explicit positions the largest one + 1 (which reads data, and so breaks a
    compiled graph). Keys rotated under one length do not match queries rotated under another: with a key cache give one
    fixed ``seq_len``, or cache keys before rotation.

    Args:
        head_dim: D, the width of a head.
        rotary_dim: R, even and at most ``head_dim``: how many columns are rotated. None: all. The others pass through
            unchanged.
        base: Base of the frequencies ``base ** (-2k/R)``.
        interleaved: Pairs are (2k, 2k+1), as in GPT-J and the original Llama weights, instead of (k, k + R/2), as in
            GPT-NeoX and the Llama of transformers.
        scaling: One of :mod:`posenc.scaling`.
        exact: False: float32 frequencies and angles, bit for bit those of transformers.
        seq_len: Length in tokens for length-dependent scalings.
        learnable: ``inv_freq`` (R/2) is a parameter.

    Attributes:
        inv_freq: (R/2) frequencies in radians per token, without the effect of a call's length.
        attention_scaling: Magnitude that multiplies cos and sin.

    Shape:
        q (B, H, T, D), k (B, G, T, D) -> (q', k') of the same shapes and dtypes, or q' where k is None

    Raises:
        ValueError: An option or a shape does not fit.
        TypeError: A dtype does not fit.

    Example:
        >>> rope = posenc.nn.Rotary(128, base=500000.0, scaling=posenc.scaling.Yarn(4.0, 8192))
        >>> q, k = rope(torch.randn(1, 32, 16, 128), torch.randn(1, 8, 16, 128), offset=100)
    """

    attention_scaling: float

    @plain_numbers
    def __init__(
        self,
        head_dim: int,
        *,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        interleaved: bool = False,
        scaling: Scaling = None,
        exact: bool = True,
        seq_len: int | None = None,
        learnable: bool = False,
    ) -> None:
        super().__init__()
        twin = _C.nn.Rotary(
            head_dim,
            rotary_dim=rotary_dim,
            base=base,
            interleaved=interleaved,
            scaling=scaling,
            exact=exact,
            seq_len=seq_len,
            learnable=learnable,
        )
        self.head_dim = head_dim
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.base = base
        self.interleaved = interleaved
        self.exact = exact
        self.seq_len = seq_len
        self.learnable = learnable
        self._set_scaling(scaling)
        self._initial_inv_freq, self.attention_scaling = twin.frequencies(seq_len)
        self._op_options = changed_options(self.attention_scaling, interleaved=interleaved, exact=exact)
        if learnable:
            self.inv_freq = torch.nn.Parameter(torch.empty(self.rotary_dim // 2))
            self.reset_parameters()
        else:
            self.inv_freq = self._initial_inv_freq
        self._fix(
            "head_dim",
            "rotary_dim",
            "base",
            "interleaved",
            "scaling",
            "exact",
            "seq_len",
            "learnable",
            "attention_scaling",
            *(() if learnable else ("inv_freq",)),
        )

    @classmethod
    def from_hf(
        cls,
        config: Any,
        layer_type: str | None = None,
        head_dim: int | None = None,
        interleaved: bool | None = None,
        **options: Any,
    ) -> "Rotary":
        """Builds the rotary embedding that a transformers configuration describes; see :func:`posenc.hf.read_rope`.

        Args:
            config: A transformers configuration, its dict (``config.json``), or a rope dict with ``head_dim``.
            layer_type: Which of several rope dicts, e.g. "sliding_attention".
            head_dim: Width of a head, where the configuration does not give it or gives another.
            interleaved: Pair layout; None: as transformers' model of this ``model_type`` has it.
            **options: Further options of the constructor, e.g. ``exact=False`` or ``seq_len``.

        Raises:
            ValueError: Unknown type or key, a missing or invalid value, or ``mrope_section`` (use
                :meth:`MultimodalRotary.from_hf`).

        Example:
            >>> rope = posenc.nn.Rotary.from_hf({"rope_type": "linear", "factor": 4.0}, head_dim=64)
        """
        from posenc import hf  # registers with transformers, which importing posenc shall not do

        return cls(**hf.rotary_arguments(config, layer_type, head_dim, interleaved), **options)

    def shift(self, key: Tensor, by: int) -> Tensor:
        """Rotates keys on by the angles of ``by`` tokens; with ``exact=False`` these are not rounded to float32."""
        shifts = self._shifts(key, by)
        if self.depends_on_call_length:
            raise ValueError(
                "Rotary: expected seq_len, one length for all calls, to shift keys whose scaling depends on the length"
            )
        options = changed_options(interleaved=self.interleaved)
        return _rotary(key, shifts, self._frequencies_for(key, shifts, 0, None), **options)

    def reset_parameters(self) -> None:
        """Sets learnable frequencies back to those that the options give."""
        if self.learnable:
            assign(self.inv_freq, self._initial_inv_freq)

    def extra_repr(self) -> str:
        """The options."""
        parts = [f"{self.head_dim}, rotary_dim={self.rotary_dim}, base={self.base}, interleaved={self.interleaved}"]
        parts += self._scaling_parts()
        parts.append(f"learnable={self.learnable}")
        return ", ".join(parts)


def at_least_float(parameter: Tensor) -> Tensor:
    """``parameter`` as the ops take it, in float32 where the module is half-width."""
    return parameter.float() if parameter.dtype in (torch.float16, torch.bfloat16) else parameter


def check_axes(module: str, positions: Tensor, num_axes: int) -> None:
    """Raises unless ``positions`` are (A, T) or (A, B, T); a pybind call here would break compiled graphs."""
    check_dense(module, "positions", positions)
    if positions.dim() < 2 or positions.shape[0] != num_axes:
        raise ValueError(
            f"{module}: expected positions of shape (axes, length) or (axes, batch, length) with {num_axes} axes, but "
            f"got {list(positions.shape)}"
        )


def _length(module: str, q: Tensor, positions: Tensor | None, offset: int | Tensor) -> int:
    """Tokens up to the last one that a call rotates."""
    if positions is not None:
        length = int(positions.max()) + 1 if positions.numel() > 0 else 1
    else:
        length = (int(offset.max()) if isinstance(offset, Tensor) else offset) + q.shape[-2]
    if not torch.compiler.is_compiling() and length >= 2**63:
        raise ValueError(f"{module}: expected positions below 2**63 - 1, but the last one is {length - 1}")
    return max(1, length)
