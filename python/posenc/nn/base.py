from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Encoding(torch.nn.Module):
    """Base of all modules: initialises parameters, and makes options read-only.

    Parameters get their initial values at construction, and again when a module that was constructed on the meta device
    gets storage (``to_empty()``). Plain torch modules leave parameters uninitialised there.
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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        was_meta = any(p.is_meta for p in self.parameters(recurse=False))
        result = super()._apply(fn, recurse)
        if was_meta and not any(p.is_meta for p in self.parameters(recurse=False)):
            self.reset_parameters()
        return result


@torch.no_grad()
def assign(parameter: Tensor, value: Tensor) -> None:
    """Copies ``value`` into ``parameter``, which may be on any device, meta included, and sharded (DTensor)."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import distribute_tensor

        placements = parameter.placements  # type: ignore[attr-defined]  # of DTensor
        value = distribute_tensor(value.to(parameter.device, parameter.dtype), mesh, placements)
    parameter.copy_(value)


def on_device_of(x: Tensor, constant: Tensor) -> Tensor:
    """``constant`` on the device of ``x``; modules keep their constants on the CPU."""
    if x.is_cpu and constant.is_cpu:  # quicker than to compare devices
        return constant
    return constant if constant.device == x.device else constant.to(x.device)
