"""What constructors of modules do with numbers among their options."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from posenc.ops.keywords import Window

P = ParamSpec("P")


def plain_numbers(init: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Makes the options of a constructor that are annotated ``int`` or ``float``, or either or None, plain numbers.

    Of a window, an int or a pair, the numbers are.

    Ints serve as floats; numpy scalars and tensors of one number become int or float, so that what is stored can be
    compared, printed and put into graphs. A bool, or a float in the place of an int, is a TypeError that names the
    option.
    """
    parameters = list(inspect.signature(init).parameters.items())[1:]
    names = [name for name, parameter in parameters]
    kinds = {name: parameter.annotation for name, parameter in parameters if parameter.annotation in _KINDS}

    @functools.wraps(init)
    def checked(self: Any, *args: P.args, **kwargs: P.kwargs) -> None:
        def plain(name: str, value: Any) -> Any:
            if name not in kinds:
                return value
            kind = _KINDS[kinds[name]]
            if kinds[name] == Window and isinstance(value, (tuple, list)):
                return tuple(plain_number(type(self).__name__, name, number, kind) for number in value)
            return plain_number(type(self).__name__, name, value, kind)

        given = [plain(name, value) for name, value in zip(names, args, strict=False)]
        named = {name: plain(name, value) for name, value in kwargs.items()}
        init(self, *given, *args[len(given) :], **named)  # type: ignore[arg-type]  # of the same names

    return checked  # type: ignore[return-value]  # whose self has a name


def plain_number(module: str, name: str, value: Any, kind: type) -> Any:
    """``value`` as an ``int`` or a ``float``, as ``kind`` says; None stays None."""
    plain = value
    if not isinstance(value, (int, float)) and getattr(value, "ndim", None) == 0:  # numpy scalars, tensors
        plain = value.item()
    if plain is None:
        return None
    if isinstance(plain, int) and not isinstance(plain, bool):
        if kind is int and not -(2**63) <= plain < 2**63:
            raise ValueError(f"{module}: expected {name} to be below 2**63, but got {plain}")
        return kind(plain)
    if kind is float and isinstance(plain, float):
        return float(plain)  # numpy's float64 is a float
    expected = "an int" if kind is int else "a number"
    raise TypeError(f"{module}: expected {name} to be {expected}, but got {value!r} of type {type(value).__name__}")


_KINDS: dict[Any, type] = {int: int, int | None: int, float: float, float | None: float, Window: int}
