from collections.abc import Mapping
from inspect import Parameter
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from posenc.nn.base import Encoding
from posenc.nn.op_call import OpCall
from posenc.ops.keywords import (
    Keywords,
    PositionOptions,
    WeightOptions,
    given,
    keyword,
    keywords_of,
    show_keywords,
)

_attention = torch.ops.posenc.attention.default
_attention_logits = torch.ops.posenc._attention_logits.default


class LogitsOptions(PositionOptions, total=False):
    """Keyword arguments of :meth:`ScoreEncoding.logits`; ``help`` shows which an encoding takes."""

    gate_key: Tensor | None
    log_decay: Tensor


class AttendOptions(LogitsOptions, WeightOptions, total=False):
    """Keyword arguments of :meth:`ScoreEncoding.attend`; ``help`` shows which an encoding takes."""


class ScoreEncoding(Encoding):
    """Base of the modules that act on attention scores.

    One of your own implements :meth:`add_terms`, or :meth:`attend_op` and :meth:`logits_op`, or derives from
    :class:`AdditiveEncoding` and says what it adds. :meth:`attend` and :meth:`logits` check keywords and call them.

    Attributes:
        always_causal: The encoding is causal by definition: no ``is_causal`` among its keywords.
        is_causal_by_default: What ``is_causal`` is where a call does not say.
        takes_positions: False where the encoding counts positions itself: no positions among its keywords.
        state_keywords: The keywords that carry what :meth:`token_state` makes: a call must give them, for all keys.
        optional_keywords: Further tensors per key that a call may give.
        needs_gate_key: The layer makes ``gate_key`` by a projection of its own, and rotates it as it does keys.
        scale: Multiplies ``query . key`` where the call does not say; None: ``1 / sqrt(D)``.
        rotates: The encoding rotates queries and keys itself, and takes them unrotated.
        embed_dim: Width of the layer's input that it was made for; None or not there: any.
        head_dim: D, the width of a head that it was made for; None or not there: any.
        num_heads: H, the query heads that it was made for; None or not there: any number.
    """

    always_causal = False
    is_causal_by_default = False
    takes_positions = True
    state_keywords: ClassVar[tuple[str, ...]] = ()
    optional_keywords: ClassVar[tuple[str, ...]] = ()
    needs_gate_key = False
    rotates = False
    scale: float | None = None
    embed_dim: int | None
    head_dim: int | None
    num_heads: int | None
    _attend_keywords: ClassVar[Keywords]
    _logits_keywords: ClassVar[Keywords]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._attend_keywords = _keywords_of(cls, PositionOptions, WeightOptions)
        cls._logits_keywords = _keywords_of(cls, PositionOptions)
        # Methods of its own, so that help() shows the keywords of this encoding; one that a class wrote itself stays.
        if getattr(cls.attend, "_shared", False):
            cls.attend = _shown(cls, cls.attend, cls._attend_keywords)  # type: ignore[method-assign]
        if getattr(cls.logits, "_shared", False):
            cls.logits = _shown(cls, cls.logits, cls._logits_keywords)  # type: ignore[method-assign]

    def token_state(self, x: Tensor) -> dict[str, Tensor]:
        """What the encoding makes of each token of the layer's input ``x`` (B, T, embed_dim), absolute encodings added.

        A mapping from keywords of :meth:`attend` to tensors whose axis 2 counts the tokens: (B, heads, T), float32
        (float64 for float64), or (B, G, T, D), as keys. :class:`Attention` hands it on, :class:`KVCache` stores it with
        the keys and values. Most encodings make nothing.
        """
        return {}

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, return_lse: bool = False, **call: Unpack[AttendOptions]
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attention with this encoding, fused; keyword arguments as in :mod:`posenc.ops`.

        Shape:
            query (B, H, Tq, D), key (B, G, Tk, D), value (B, G, Tk, Dv) -> (B, H, Tq, Dv), with ``return_lse`` also
            lse (B, H, Tq)

        Raises:
            ValueError: A shape or a value does not fit the module or the op.
            TypeError: A dtype does not fit, or the encoding does not take a keyword, or needs it.
        """
        self._check_required("attend", call)
        options = given(f"{type(self).__name__}.attend", self._attend_keywords, call)
        out, lse = self.attend_op(query, key, value, **options)
        return (out, lse) if return_lse else out

    def logits(self, query: Tensor, key: Tensor, **call: Unpack[LogitsOptions]) -> Tensor:
        """The final scores (B, H, Tq, Tk), float32 (float64 for float64), hidden keys -infinity: for inspection.

        ``softmax(logits) @ value`` is :meth:`attend`, unless the encoding acts on values too.
        """
        self._check_required("logits", call)
        return self.logits_op(query, key, **given(f"{type(self).__name__}.logits", self._logits_keywords, call))

    def attend_op(self, query: Tensor, key: Tensor, value: Tensor, **call: Any) -> tuple[Tensor, Tensor]:
        """(out, lse) of a call whose keywords :meth:`attend` has checked; none of them is None."""
        op = self._op_call(query, key, value, call)
        return _attention(op.query, op.key, value, **op.keywords)

    def logits_op(self, query: Tensor, key: Tensor, **call: Any) -> Tensor:
        """The scores of a call whose keywords :meth:`logits` has checked."""
        op = self._op_call(query, key, None, call)
        return _attention_logits(op.query, op.key, **op.keywords)

    def add_terms(self, op: OpCall) -> None:
        """Adds what the encoding does to a call of ``posenc::attention``; see :class:`OpCall`. :class:`Attention` asks
        each of several score encodings. ``op.keywords`` holds the keywords of the call, of which the encoding takes out
        those of its own."""
        raise NotImplementedError(
            f"{type(self).__name__}: expected add_terms(), which says what the encoding adds to a call: without it the "
            "encoding attends alone"
        )

    def _op_call(self, query: Tensor, key: Tensor, value: Tensor | None, call: dict[str, Any]) -> OpCall:
        if self.scale is not None:
            call.setdefault("scale", self.scale)
        op = OpCall(query, key, value, call)
        self.add_terms(op)
        return op

    def _check_required(self, method: str, call: Mapping[str, Any]) -> None:
        for name in self.state_keywords:
            if name not in call:
                raise TypeError(
                    f"{type(self).__name__}.{method}() needs the keyword argument {name!r}, for all keys: "
                    f"token_state(x)[{name!r}] of the layer's input"
                )

    attend._shared = logits._shared = True  # type: ignore[attr-defined]


def _keywords_of(cls: type[ScoreEncoding], *options: type) -> dict[str, Parameter]:
    """The keywords of an encoding, those of its own first."""
    without = {"is_causal", "block_ids"} if cls.always_causal else set()
    if not cls.takes_positions:
        without |= {"q_positions", "k_positions"}
    shared = {name: p for name, p in keywords_of(_attention, *options).items() if name not in without}
    if "is_causal" in shared:
        shared["is_causal"] = shared["is_causal"].replace(default=cls.is_causal_by_default)
    needed = {name: keyword(name, Parameter.empty, Tensor) for name in cls.state_keywords}
    optional = {name: keyword(name, None, Tensor | None) for name in cls.optional_keywords}
    return {**needed, **optional, **shared}


def _shown(cls: type, method: Any, keywords: Keywords) -> Any:
    """A copy of ``method`` that belongs to ``cls`` and shows ``keywords``."""
    copy = FunctionType(method.__code__, method.__globals__, method.__name__, method.__defaults__, method.__closure__)
    copy.__kwdefaults__ = method.__kwdefaults__
    copy.__doc__ = method.__doc__
    copy.__annotations__ = method.__annotations__
    copy.__module__ = cls.__module__
    copy.__qualname__ = f"{cls.__qualname__}.{method.__name__}"
    copy.__dict__["_shared"] = True
    return show_keywords(copy, keywords)
