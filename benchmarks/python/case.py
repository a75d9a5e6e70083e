"""A case: contenders for the same work on the same inputs, checked before they are timed, and what is compared."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from measure import Effort, Run, interleave
from results import Row
from shapes import Shape

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Contender:
    """One implementation.

    Attributes:
        rotate: (q, k) -> (q', k').
        tolerance: Allowed absolute error against the reference; None for work that does not rotate.
        interleaved: Pairs are (2k, 2k+1).
        in_place: `rotate` changes its arguments, so it gets tensors of its own.
        temporaries: It allocates more large blocks than its outputs.
    """

    rotate: Rotate
    tolerance: float | None
    interleaved: bool = False
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
    """What rotary.py describes and `measure` runs.

    Attributes:
        mode: "forward" or "forward+backward" (to q and k).
        offset: Position of the first token.
        contenders: Makes the implementations; called only when the case is measured.
    """

    shape: Shape
    mode: str
    dtype: torch.dtype
    layout: str
    contenders: Callable[[], Mapping[str, Contender]]
    comparisons: Sequence[Comparison]
    offset: int = 0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        words = (self.shape.name, self.mode, str(self.dtype).removeprefix("torch."), self.layout)
        object.__setattr__(self, "name", " ".join(words))


def measure(case: Case, effort: Effort, *, judged_only: bool = False) -> list[Row]:
    """Checks every contender, times them, and returns the comparisons whose sides are both there.

    Args:
        judged_only: Leaves out comparisons without a target.
    """
    torch.manual_seed(0)
    torch.compiler.reset()
    comparisons = [c for c in case.comparisons if c.target is not None or not judged_only]
    compared = {name for c in comparisons for name in (c.ours, c.peer)}
    contenders = {name: contender for name, contender in case.contenders().items() if name in compared}
    backward = case.mode == "forward+backward"
    q, k = case.shape.tensors(case.dtype, case.layout, requires_grad=backward)
    gradients = case.shape.tensors(case.dtype, case.layout) if backward else None
    reference = functools.cache(functools.partial(_reference, case, (q, k), gradients))
    for name, contender in contenders.items():
        if contender.tolerance is not None:
            expected = reference(contender.interleaved)
            _check(f"{case.name}: {name}", contender, (q, k), gradients, expected)
    runs = {name: _run(contender, (q, k), gradients) for name, contender in contenders.items()}
    rows = []
    with torch.set_grad_enabled(backward):
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


def _run(contender: Contender, inputs: tuple[Tensor, Tensor], gradients: tuple[Tensor, Tensor] | None) -> Run:
    rotate = contender.rotate
    if contender.in_place:
        # Rotations keep lengths, so tensors that are turned again and again neither grow nor decay.
        inputs = tuple(x.detach().clone() for x in inputs)
    q, k = inputs
    if gradients is None:
        return lambda: rotate(q, k)
    return lambda: torch.autograd.grad(rotate(q, k), inputs, gradients)


def _check(
    what: str,
    contender: Contender,
    inputs: tuple[Tensor, Tensor],
    gradients: tuple[Tensor, Tensor] | None,
    expected: Sequence[Tensor],
) -> None:
    """Compares outputs, and gradients where timed."""
    if contender.in_place:
        inputs = tuple(x.detach().clone() for x in inputs)
    with torch.set_grad_enabled(gradients is not None):
        actual = contender.rotate(*inputs)
    if gradients is not None:
        actual += torch.autograd.grad(actual, inputs, gradients)
    for a, e in zip(actual, expected):
        error = (a.detach() - e).abs_().max().item()
        # Written so that NaN fails too.
        if not error <= contender.tolerance:
            raise AssertionError(f"{what}: wrong by {error:.3g}, more than {contender.tolerance:g}")


@torch.no_grad()
def _reference(
    case: Case, inputs: tuple[Tensor, Tensor], gradients: tuple[Tensor, Tensor] | None, interleaved: bool
) -> list[Tensor]:
    """Outputs and gradients, rotated in float32 by angles formed in float64."""
    width = case.shape.rotary_dim
    positions = torch.arange(case.offset, case.offset + case.shape.tokens, dtype=torch.float64)
    inv_freq = case.shape.base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(positions, inv_freq)
    cos, sin = angles.cos().float(), angles.sin().float()
    turned = [_rotate(x, cos, sin, interleaved) for x in inputs]
    return turned + [_rotate(g, cos, -sin, interleaved) for g in gradients or ()]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    width = 2 * cos.shape[-1]
    out = x.float().clone()
    first, second = (
        (out[..., 0:width:2], out[..., 1:width:2])
        if interleaved
        else (out[..., : width // 2], out[..., width // 2 : width])
    )
    turned = first * cos - second * sin, second * cos + first * sin
    first.copy_(turned[0])
    second.copy_(turned[1])
    return out
