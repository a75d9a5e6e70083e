"""A configuration of an encoding, with all that test_modules.py needs to know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import posenc
from devices import on_cpu


@dataclass(frozen=True)
class Case:
    """One configuration of one encoding.

    Attributes:
        name: Test id.
        python: The class in posenc.nn; `posenc.nn.cpp` holds a C++ twin of the same name.
        arguments: Positional constructor arguments.
        options: Keyword constructor arguments; `repr` shows each.
        inputs: dtype -> the tensors of one call.
        reference: (parameters by name, *inputs in float64) -> the outputs in float64.
        parameters: Names of the parameters, the whole state dict.
        buffers: Names of the buffers, which no state dict holds.
        call: (module or its twin, *inputs) -> output or outputs.
        training: The mode of the module; what a mode draws at random has tests of its own.
        is_attend: `call` is attend: hooks, which see forward alone, do not fire, and dot products may add up in another
            order for other strides.
        rounds_within: Intermediate tensors are rounded to the dtype of the inputs.
    """

    name: str
    python: str
    arguments: tuple
    options: Mapping[str, Any]
    inputs: Callable[[torch.dtype], tuple[torch.Tensor, ...]]
    reference: Callable[..., tuple[torch.Tensor, ...]]
    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    call: Callable = field(default=lambda module, *inputs: module(*inputs))
    training: bool = True
    is_attend: bool = False
    rounds_within: bool = False

    def build(self) -> torch.nn.Module:
        module = with_initial_seed(lambda: getattr(posenc.nn, self.python)(*self.arguments, **self.options))
        return module.train(self.training)

    def build_twin(self):
        twin = with_initial_seed(lambda: getattr(posenc.nn.cpp, self.python)(*self.arguments, **self.options))
        twin.train(self.training)
        return twin

    def run(self, module, *inputs) -> tuple[torch.Tensor, ...]:
        return as_tuple(self.call(module, *inputs))

    def expected(self, parameters, *inputs) -> tuple[torch.Tensor, ...]:
        """The reference's outputs, on the device of the inputs."""
        return on_cpu(self.reference, parameters, *inputs)

    def __str__(self) -> str:
        return self.name


def with_initial_seed(draw: Callable):
    """What `draw` returns, from the seed that every module is built with,
    so that initial parameters can be compared."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20)
        return draw()


def as_tuple(outputs) -> tuple[torch.Tensor, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


LENGTH = 7
