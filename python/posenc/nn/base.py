from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode

Module = TypeVar("Module", bound=torch.nn.Module)


class Encoding(torch.nn.Module):
    """Base of all modules: initialises parameters, and makes options read-only.

    Parameters get their initial values at construction, and again when a module that was constructed on the meta device
    gets storage (``to_empty()``). Plain torch modules leave parameters uninitialised there. Initialised are the
    parameters that the module itself registered, and those of submodules that it made and marked with :func:`made`.
    Whatever replaces a submodule is left alone.
    """

    _fixed: frozenset[str] = frozenset()

    def _fix(self, *options: str) -> None:
        """Makes options read-only: what was computed from them at construction would not change with them."""
        self._fixed = frozenset(options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._fixed:
            raise AttributeError(
                f"{type(self).__name__}: {name} is fixed at construction, and what follows from it is computed there; "
                "build a new module instead"
            )
        super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Sets every parameter to its initial value."""

    def _reset_own(self) -> None:
        """Sets the parameters that are not those of a submodule to their initial values."""
        self.reset_parameters()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        emptied = _is_to_empty(fn)
        own = emptied or _has_meta(self)
        parts = [part for part in made_inside(self) if emptied or _has_meta(part)]
        result = super()._apply(fn, recurse)
        if own and not _has_meta(self):
            self._reset_own()
        for part in parts:
            if not _has_meta(part):
                part.reset_parameters()
        return result


def made(module: Module) -> Module:
    """Marks a submodule with ``reset_parameters`` as made by the encoding that holds it.

    The encoding initialises it where its memory is new, also where a wrapper (an adapter, say) has come between them.
    """
    module._made_by_encoding = True  # type: ignore[assignment]  # kept by copies, unlike an entry in a list of the encoding
    return module


def made_inside(encoding: Encoding) -> Iterator[Any]:
    """Submodules that ``encoding`` made, at any depth but inside other encodings, which care for their own."""
    pending = list(encoding.children())
    while pending:
        module = pending.pop(0)
        if isinstance(module, Encoding):
            continue
        if getattr(module, "_made_by_encoding", False):
            yield module
        pending.extend(module.children())


def _has_meta(module: torch.nn.Module) -> bool:
    return any(parameter.is_meta for parameter in module.parameters(recurse=False))


def _is_to_empty(fn: Callable[[Tensor], Tensor]) -> bool:
    """Whether ``to_empty`` is at work, which gives new memory also to parameters that are on no meta device (and to
    those of a module that several others share once for each of them). torch shows it by nothing but this name."""
    return getattr(fn, "__qualname__", "").startswith("Module.to_empty.")


def check_dense(module: str, name: str, x: Tensor) -> None:
    """Refuses what ops refuse, before its shape is asked for, which a nested tensor may not have."""
    if x.is_nested:
        found = "a nested one: pad its sequences to one length"
    elif x.is_quantized:
        found = "a quantized one: call dequantize() on it"
    elif x.layout is not torch.strided:
        found = f"the layout {x.layout}: call to_dense() on it"
    else:
        return
    raise ValueError(f"{module}: expected {name} to be a dense tensor, but got {found}")


def fake_mode() -> FakeTensorMode | None:
    """The FakeTensorMode in force, if it refuses tensors with numbers in them."""
    mode: FakeTensorMode | None = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return None if mode is None or mode.allow_non_fake_inputs else mode


def fitting(x: Tensor, constant: Tensor) -> Tensor:
    """``constant`` for a call on ``x``: a fake tensor where ``x`` is one of a mode that takes no others.

    Modules keep their constants as tensors with numbers, also where they are built inside FakeTensorMode, so that they
    work after it.
    """
    if isinstance(x, FakeTensor) and not x.fake_mode.allow_non_fake_inputs and not isinstance(constant, FakeTensor):
        return x.fake_mode.from_tensor(constant)
    return constant


@torch.no_grad()
def assign(parameter: Tensor, value: Tensor) -> None:
    """Copies ``value`` into ``parameter``, which may be on any device, meta included, and sharded (DTensor)."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import distribute_tensor

        placements = parameter.placements  # type: ignore[attr-defined]  # of DTensor
        value = distribute_tensor(value.to(parameter.device, parameter.dtype), mesh, placements)
    mode = fake_mode()
    if mode is not None and not isinstance(value, FakeTensor):
        value = mode.from_tensor(value)
    parameter.copy_(value)


def on_device_of(x: Tensor, constant: Tensor) -> Tensor:
    """``constant`` on the device of ``x``; modules keep their constants on the CPU."""
    if type(x) is not Tensor:
        constant = fitting(x, constant)
    if x.is_cpu and constant.is_cpu:  # quicker than to compare devices
        return constant
    return constant if constant.device == x.device else constant.to(x.device)
