"""Programs of torch.export without posenc's ops, for runtimes that have standard operators alone.

A program that ``torch.export.export`` makes of a model with posenc in it holds posenc's ops. Where posenc is installed
it runs as it is, also packaged by AOTInductor. For ONNX and others each op is replaced by what it means::

    program = torch.export.export(model, (x,), dynamic_shapes={"x": {1: torch.export.Dim("length", min=2, max=4096)}})
    program = posenc.export.without_ops(program)
    torch.onnx.export(program, dynamo=True).save("model.onnx")

Such a program holds scores of all queries and keys, as eager code does.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import SymInt, Tensor
from torch._C import DispatchKey
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["decompositions", "without_ops"]


def decompositions() -> dict[Any, Callable[..., Any]]:
    """What each op of posenc means in ATen ops, for ``ExportedProgram.run_decompositions``.

    Every op of the modules and of ``posenc.ops`` is there but those that write to their inputs, which torch.export
    replaces before, those without tensors to trace (``alibi_slopes``), and ``positions_from_cu_seqlens`` and
    ``segments_from_cu_seqlens``, whose results do not follow from shapes.

    Returns:
        Ops (``torch._ops.OpOverload``) and functions that compute the same: values within rounding, the same gradients.
        ``LearnedAbsolute`` no longer checks that given positions are in its table.

    Raises:
        NotImplementedError: When a program is decomposed in which a rotary scaling follows the length of each call
            (DynamicNTK, LongRoPE without ``seq_len=``) and the length is dynamic.
    """
    ops = torch.ops.posenc
    table: dict[Any, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        key = _plain_key(name) if name.startswith("posenc::") and not name.endswith("_") else None
        if key is not None:
            op = getattr(ops, name.removeprefix("posenc::")).default
            table[op] = functools.partial(op._op_dk, key)
    table[ops.t5_bucket.default] = _t5_bucket
    table[ops._cosine_sums.default] = _cosine_sums
    table[ops._checked_positions.default] = _unchecked_positions
    table[ops.scaled_inv_freq.default] = _scaled_inv_freq
    return table


def without_ops(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with ATen ops in the place of posenc's.

    Raises:
        NotImplementedError: See :func:`decompositions`.
        ValueError: An op of posenc is left.
    """
    plain = program.run_decompositions(torch.export.default_decompositions() | decompositions())
    left = sorted({str(node.target) for node in plain.graph.nodes if str(node.target).startswith("posenc.")})
    if left:
        raise ValueError(
            f"posenc.export.without_ops: expected ops that have decompositions, but the program holds {left}: compute "
            "their results outside the model and pass them in"
        )
    return plain


def _plain_key(name: str) -> DispatchKey | None:
    """The key of the kernel that consists of ATen ops alone and writes to no tensor: torch.func uses it."""
    for key in (DispatchKey.FuncTorchBatched, DispatchKey.CompositeImplicitAutograd):
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key.name):
            return key
    return None


def _t5_bucket(
    relative_position: Tensor, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:
    first = -max_distance
    with _disable_current_modes():
        distances = torch.arange(first, max_distance + 1)
        buckets: list[int] = torch.ops.posenc.t5_bucket(
            distances, num_buckets=num_buckets, max_distance=max_distance, bidirectional=bidirectional
        ).tolist()
    # A sum of steps, since a traced function makes no constant tensors.
    relative = relative_position.to(torch.int64).clamp(first, max_distance)
    result = torch.full_like(relative, buckets[0])
    for index in range(1, len(buckets)):
        step = buckets[index] - buckets[index - 1]
        if step != 0:
            result = result + (relative >= first + index) * step
    return result


def _cosine_sums(inv_freq: Tensor, length: int) -> Tensor:
    distances = torch.arange(length, dtype=inv_freq.dtype, device=inv_freq.device)
    return (distances.unsqueeze(-1) * inv_freq).cos().sum(-1)


def _unchecked_positions(positions: Tensor, max_positions: int) -> Tensor:
    del max_positions
    return positions.to(torch.int64)


def _scaled_inv_freq(
    like: Tensor, scaling: list[float], dim: int, base: float, seq_len: int | SymInt, exact: bool = True
) -> Tensor:
    if not isinstance(seq_len, int):
        raise NotImplementedError(
            "posenc.export: expected rotary encodings whose frequencies do not follow the length of each call, but got "
            "one with a dynamic length: give the encoding seq_len=, or export for one length"
        )
    with _disable_current_modes():
        inv_freq = torch.ops.posenc.scaled_inv_freq(torch.empty(0), scaling, dim, base, seq_len, exact)
        numbers: list[float] = inv_freq.tolist()
    options = {"dtype": inv_freq.dtype, "device": like.device}
    return torch.stack([torch.full((), number, **options) for number in numbers])
