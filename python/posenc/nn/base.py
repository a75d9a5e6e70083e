from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Encoding(torch.nn.Module):
    """Base of all modules: parameters take their initial values whenever memory is new, and options are read-only.

    ``to_empty`` after construction on the meta device leaves parameters of plain torch modules uninitialised; here it
    initialises them, so that nothing computes with what the allocator left behind.
    """

    _fixed: frozenset[str] = frozenset()

    def _fix(self, *options: str) -> None:
        """Makes options read-only: what was derived from them would not follow."""
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


@torch.no_grad()
def assign(parameter: Tensor, value: Tensor) -> None:
    """Copies ``value`` into ``parameter``, which may be on any device, meta included, and sharded (DTensor)."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import distribute_tensor

        placements = parameter.placements  # type: ignore[attr-defined]  # of DTensor
        value = distribute_tensor(value.to(parameter.device, parameter.dtype), mesh, placements)
    parameter.copy_(value)
