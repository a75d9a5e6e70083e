"""The keyword arguments of attention, written once: types for checkers, signatures for readers, checks for calls.

An op's schema holds order and defaults, a TypedDict here the types. A call hands on only what it was given: the
dispatcher takes a microsecond for every three arguments.
"""

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from torch import Tensor

# What ops take as two arguments and functions as a pair, and what is named after another argument there.
_PAIRS = {"max_distance_left": "max_distance"}
_RENAMED = {"grid_rel_scale": "rel_scale"}
_IN_OPS = {name: of_op for of_op, name in _RENAMED.items()}

Window = int | tuple[int | None, int | None] | None


class MaskOptions(TypedDict, total=False):
    """What scores of every attention take."""

    scale: float | None
    key_mask: Tensor | None
    attn_mask: Tensor | None
    window: Window
    segment_ids: Tensor | None
    q_segment_ids: Tensor | None
    bias: Tensor | None
    softcap: float | None
    softcap_on: Literal["content", "sum"]


class PositionOptions(MaskOptions, total=False):
    """What attention takes that is causal by position, where it is causal."""

    is_causal: bool
    block_ids: Tensor | None
    q_positions: Tensor | None
    k_positions: Tensor | None


class WeightOptions(TypedDict, total=False):
    """What acts on weights, after the scores."""

    sinks: Tensor | None
    dropout_p: float


class TermOptions(WeightOptions, total=False):
    """Terms of scores that modules make of their own."""

    alibi_slopes: Tensor | None
    distance_bias: Tensor | None
    log_decay: Tensor | None
    grid_bias: Tensor | None


class AttentionOptions(PositionOptions, TermOptions, total=False):
    """Keyword arguments of ``attention`` and ``piecewise_attention``."""

    q_start: Tensor | None


class RelativeAttentionOptions(AttentionOptions, total=False):
    """Keyword arguments of ``relative_attention``."""

    rel_query: Tensor | None
    rel_q: Tensor | None
    max_distance: tuple[int, int] | None
    beyond: Literal["clip", "zero"]
    rel_scale: float | None


class CoPEAttentionOptions(MaskOptions, TermOptions, total=False):
    """Keyword arguments of ``cope_attention``."""

    gate_key: Tensor | None
    gate_bias: Tensor | None
    q_positions: Tensor | None
    k_positions: Tensor | None
    scale_position_logits: bool


Keywords = Mapping[str, Parameter]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def keywords_of(op: Any, *options: type) -> dict[str, Parameter]:
    """The arguments of an op that ``options`` type, in the order and with the defaults of the op's schema."""
    types = {name: hint for each in options for name, hint in get_type_hints(each).items()}
    shown = _PAIRS | _RENAMED
    arguments = [(shown.get(argument.name, argument.name), argument.default_value) for argument in op._schema.arguments]
    return {name: keyword(name, default, types[name]) for name, default in arguments if name in types}


def keyword(name: str, default: Any, annotation: Any) -> Parameter:
    """A parameter that is given by name; ``default`` is ``Parameter.empty`` where it must be given."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def show_keywords(function: _Function, keywords: Keywords) -> _Function:
    """Lets ``help`` and ``inspect.signature`` show ``keywords`` where the function says ``**call``."""
    shown = signature(function)
    own = [parameter for parameter in shown.parameters.values() if parameter.kind != Parameter.VAR_KEYWORD]
    positional = [parameter for parameter in own if parameter.kind != Parameter.KEYWORD_ONLY]
    last = [parameter for parameter in own if parameter.kind == Parameter.KEYWORD_ONLY]
    function.__signature__ = Signature(  # type: ignore[attr-defined]  # inspect's way to replace a signature
        [*positional, *keywords.values(), *last], return_annotation=shown.return_annotation
    )
    return function


def takes(keywords: Keywords) -> Callable[[_Function], _Function]:
    """:func:`show_keywords` as a decorator."""
    return lambda function: show_keywords(function, keywords)


def given(function: str, keywords: Keywords, call: Mapping[str, Any]) -> dict[str, Any]:
    """What of ``call`` is handed on, under the ops' names: all but None, which stands for the default.

    Raises:
        TypeError: ``function`` has no such keyword.
    """
    handed_on = {}
    for name, value in call.items():
        if name not in keywords:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}: it takes {', '.join(keywords)}")
        if name == "max_distance" or (name == "window" and isinstance(value, tuple)):
            handed_on.update(_sides(function, name, value))
        elif value is not None:
            handed_on[_IN_OPS.get(name, name)] = value
    return handed_on


def _sides(function: str, name: str, pair: Any) -> dict[str, int]:
    """``(left, right)`` as the ops take it."""
    if pair is None:
        return {}
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        alone = "an int or " if name == "window" else ""
        raise ValueError(f"{function}: expected {name} to be {alone}(left, right), but got {pair}")
    sides = zip((f"{name}_left", f"{name}_right"), pair, strict=True)
    return {side: reach for side, reach in sides if reach is not None}
