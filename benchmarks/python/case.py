"""A case: contenders for the same work on the same inputs, checked before they are timed, and what is compared."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from measure import Effort, Run, interleave
from results import Row

MODES = ("forward", "forward+backward")


@dataclass(frozen=True)
class Data:
    """What the contenders of a case work on.

    Attributes:
        inputs: Arguments of every contender.
        gradients: Those of the outputs, where forward and backward are timed; else None.
    """

    inputs: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...] | None = None

    def detached(self) -> "Data":
        """Copies that have no history, for contenders that change their arguments."""
        return Data(tuple(x.detach().clone() for x in self.inputs), self.gradients)


@dataclass(frozen=True)
class Contender:
    """One implementation.

    Attributes:
        run: Makes the outputs of the case's inputs.
        tolerance: Allowed absolute error against the reference; None for work that is not that of the case.
        variant: Which of the case's references it has to agree with.
        in_place: `run` changes its arguments, so it gets tensors of its own.
        temporaries: It allocates more large blocks than its outputs.
    """

    run: Callable[..., tuple[Tensor, ...]]
    tolerance: float | None
    variant: str = ""
    in_place: bool = False
    temporaries: bool = False


@dataclass(frozen=True)
class Comparison:
    """Time of `ours` divided by time of `peer`; `target` is the most that it should be, None where none is set."""

    ours: str
    peer: str
    target: float | None = None


@dataclass(frozen=True)
class Case:
    """What rotary.py and attention.py describe and `measure` runs.

    Attributes:
        data: Draws the inputs.
        reference: (data, variant) -> outputs and, with gradients, those of the inputs, None for one that has none.
        contenders: Makes the implementations; called only when the case is measured.
        excerpt: The part of such outputs and gradients that `reference` gives.
        focused: From the data that are timed, those that contenders are compared on.
        smoke: Only for tests of the benchmarks.
    """

    name: str
    data: Callable[[], Data]
    reference: Callable[[Data, str], Sequence[Tensor | None]]
    contenders: Callable[[], Mapping[str, Contender]]
    comparisons: Sequence[Comparison]
    excerpt: Callable[[Tensor], Tensor] = lambda x: x
    focused: Callable[[Data], Data] = lambda data: data
    smoke: bool = False

    def selected(self, *, judged_only: bool) -> list[Comparison]:
        """All comparisons, or those that have a target."""
        return [c for c in self.comparisons if c.target is not None or not judged_only]


def measure(case: Case, effort: Effort, *, judged_only: bool = False) -> list[Row]:
    """Checks every contender, times them, and returns the comparisons whose sides are both there.

    Args:
        judged_only: Leaves out comparisons without a target.
    """
    torch.manual_seed(0)
    torch.compiler.reset()
    comparisons = case.selected(judged_only=judged_only)
    compared = {name for c in comparisons for name in (c.ours, c.peer)}
    contenders = {name: contender for name, contender in case.contenders().items() if name in compared}
    data = case.data()
    compared_on = case.focused(data)
    reference = functools.cache(functools.partial(case.reference, compared_on))
    for name, contender in contenders.items():
        if contender.tolerance is not None:
            _check(f"{case.name}: {name}", contender, compared_on, reference(contender.variant), case.excerpt)
    runs = {name: _run(contender, data) for name, contender in contenders.items()}
    rows = []
    with torch.set_grad_enabled(data.gradients is not None):
        for group in _groups(comparisons, contenders):
            timings = interleave({name: runs[name] for c in group for name in (c.ours, c.peer)}, effort, _clock())
            rows += [Row(case.name, c.ours, c.peer, timings[c.ours], timings[c.peer], c.target) for c in group]
    return rows


def _groups(comparisons: Sequence[Comparison], contenders: Mapping[str, Contender]) -> list[list[Comparison]]:
    """Comparisons whose sides are both there, in the groups that are timed together.

    Whether the default allocator cuts a block of 32 MiB from free memory or maps fresh pages depends on what was freed
    before. So contenders that allocate their outputs alone, which are compared closely, do not take turns with those
    that allocate temporaries.
    """
    present = [c for c in comparisons if c.ours in contenders and c.peer in contenders]
    apart = [c for c in present if contenders[c.ours].temporaries or contenders[c.peer].temporaries]
    return [group for group in (apart, [c for c in present if c not in apart]) if group]


def _clock() -> Callable[[], float]:
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _run(contender: Contender, data: Data) -> Run:
    if contender.in_place:
        # Rotations keep lengths, so tensors that are turned again and again neither grow nor decay.
        data = data.detached()
    run, inputs, gradients = contender.run, data.inputs, data.gradients
    if gradients is None:
        return lambda: run(*inputs)
    return lambda: torch.autograd.grad(run(*inputs), inputs, gradients, allow_unused=True)


def _check(
    what: str,
    contender: Contender,
    data: Data,
    expected: Sequence[Tensor | None],
    excerpt: Callable[[Tensor], Tensor],
) -> None:
    """Compares outputs, and gradients where timed."""
    if contender.in_place:
        data = data.detached()
    with torch.set_grad_enabled(data.gradients is not None):
        actual: tuple[Tensor | None, ...] = contender.run(*data.inputs)
    if data.gradients is not None:
        actual += torch.autograd.grad(actual, data.inputs, data.gradients, allow_unused=True)
    for a, e in zip(actual, expected, strict=True):
        if (a is None) != (e is None):
            raise AssertionError(f"{what}: {'lacks a' if a is None else 'has a needless'} gradient")
        if a is None or e is None:
            continue
        error = (excerpt(a.detach()) - e).abs_().max().item()
        # Written so that NaN fails too.
        if not error <= contender.tolerance:
            raise AssertionError(f"{what}: wrong by {error:.3g}, more than {contender.tolerance:g}")
