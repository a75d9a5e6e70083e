"""What ran in the attention layers of a model."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

__all__ = ["Layer", "Report", "report"]

POSENC, EAGER, SDPA = "posenc", "eager", "sdpa"
# What each layer ran last.
_last: "WeakKeyDictionary[nn.Module, tuple[str, str | tuple[str, ...]]]" = WeakKeyDictionary()


def ran(module: nn.Module, where: str, how: str | Iterable[str]) -> None:
    """Notes what a layer runs: a reason, or the keywords of posenc's attention."""
    _last[module] = (where, how if isinstance(how, str) else tuple(how))


@dataclass(frozen=True)
class Layer:
    """An attention layer of a model.

    Attributes:
        name: As in ``model.named_modules()``.
        kind: Its class.
        ran: "posenc"; "eager", the model's own function; "sdpa"; "-" where transformers has not called posenc.
        how: The keywords of posenc's attention, or why something else ran.
    """

    name: str
    kind: str
    ran: str
    how: str


class Report(tuple[Layer, ...]):
    """The attention layers of a model, a table when printed."""

    def __str__(self) -> str:
        rows = [("layer", "class", "ran", "how"), *((x.name, x.kind, x.ran, x.how) for x in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def report(model: nn.Module) -> Report:
    """Lists what ran in each attention layer of ``model``, in its last forward outside of a compiled graph.

    Args:
        model: A model of transformers, after a forward with ``attn_implementation="posenc"``.

    Example:
        >>> model(**inputs)
        >>> print(posenc.hf.report(model))
        layer                    class           ran     how
        model.layers.0.self_attn LlamaAttention  posenc  is_causal, scale
    """
    return Report(_layers(model))


def _layers(model: nn.Module) -> Iterator[Layer]:
    named = dict(model.named_modules())
    noted = {name for name, module in named.items() if module in _last}
    for name, module in named.items():
        kind = type(module).__name__
        if name in noted:
            where, how = _last[module]
            yield Layer(name, kind, where, how if isinstance(how, str) else ", ".join(how) or "all keys")
        elif "Attention" in kind and not _near(name, noted) and not any(_inner_attention(module)):
            implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
            if implementation not in (None, POSENC):
                why = f'attn_implementation is "{implementation}"'
            else:
                why = "not called, or by code of its own that asks transformers for no attention function"
            yield Layer(name, kind, "-", why)


def _near(name: str, noted: set[str]) -> bool:
    """Whether a layer holds one that is listed, or is part of one."""
    return any(other.startswith(f"{name}.") or name.startswith(f"{other}.") for other in noted)


def _inner_attention(module: nn.Module) -> Iterator[Any]:
    return (True for part in module.modules() if part is not module and "Attention" in type(part).__name__)
