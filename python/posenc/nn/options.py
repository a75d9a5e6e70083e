"""What constructors of modules do with numbers among their options."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

P = ParamSpec("P")


def plain_numbers(init: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Makes the options of a constructor that are annotated ``int`` or ``float``, or either or None, plain numbers.

    Ints serve as floats; numpy scalars and tensors of one number become int or float, so that what is stored can be
    compared, printed and put into graphs. A bool, or a float in the place of an int, is a TypeError
    that names the option.
    """
    parameters = list(inspect.signature(init).parameters.items())[1:]
    names = [name for name, parameter in parameters]
    kinds = {name: kind for name, parameter in parameters if (kind := _KINDS.get(parameter.annotation)) is not None}

    @functools.wraps(init)
    def checked(self: Any, *args: P.args, **kwargs: P.kwargs) -> None:
        module = type(self).__name__
        given = [
            plain_number(module, name, value, kinds[name]) if name in kinds else value
            for name, value in zip(names, args, strict=False)
        ]
        named = {
            name: plain_number(module, name, value, kinds[name]) if name in kinds else value
            for name, value in kwargs.items()
        }
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


_KINDS: dict[Any, type] = {int: int, int | None: int, float: float, float | None: float}
