"""Frequencies of rotary position embeddings and of their context extensions.

Symbols in the formulas: d rotary width, b base, theta_k = b^(-2k/d) for k = 0..d/2-1 in radians per token. Every class
is an immutable value: printable, comparable, hashable, picklable. None stands for plain RoPE.

Example:
    >>> import posenc
    >>> yarn = posenc.scaling.Yarn(4, 8192)
    >>> inv_freq, attention_scaling = posenc.scaling.frequencies(128, 10000.0, yarn)
    >>> inv_freq.shape, round(attention_scaling, 6)
    (torch.Size([64]), 1.138629)
"""

from typing import TypeAlias

from torch import Tensor

from posenc import _C

Linear = _C.scaling.Linear
NTK = _C.scaling.NTK
DynamicNTK = _C.scaling.DynamicNTK
NTKByParts = _C.scaling.NTKByParts
Yarn = _C.scaling.Yarn
LongRoPE = _C.scaling.LongRoPE
Llama3 = _C.scaling.Llama3
Proportional = _C.scaling.Proportional
PRoPE = _C.scaling.PRoPE
TruncatedBasis = _C.scaling.TruncatedBasis
PowerBasis = _C.scaling.PowerBasis

Scaling: TypeAlias = (
    Linear
    | NTK
    | DynamicNTK
    | NTKByParts
    | Yarn
    | LongRoPE
    | Llama3
    | Proportional
    | PRoPE
    | TruncatedBasis
    | PowerBasis
    | None
)

__all__ = [
    "DynamicNTK",
    "Linear",
    "Llama3",
    "LongRoPE",
    "NTK",
    "NTKByParts",
    "PRoPE",
    "PowerBasis",
    "Proportional",
    "Scaling",
    "TruncatedBasis",
    "Yarn",
    "attention_scaling",
    "depends_on_length",
    "frequencies",
]


def frequencies(
    dim: int, base: float = 10000.0, scaling: Scaling = None, seq_len: int | None = None, exact: bool = True
) -> tuple[Tensor, float]:
    """Returns the frequencies of a rotary embedding and what multiplies its cos and sin.

    Args:
        dim: Rotary width, even and at least 0.
        base: b, positive (above 1 for `Yarn` with its ramp in dims).
        scaling: One of this module's classes, or None.
        seq_len: Length in tokens, for `DynamicNTK` and `LongRoPE`; None means their original length.
        exact: The formulas in float64. False: float32 in the order of operations of transformers, equal bit for bit to
            its `ROPE_INIT_FUNCTIONS`; scalings that transformers lacks take the same formula in float32. For
            `DynamicNTK` above the original length that is what its models compute, with the base in float32.

    Returns:
        `inv_freq` in radians per token on the CPU, and the attention scaling.

    Shape:
        inv_freq: (dim / 2), float64, or float32 where exact is False.

    Raises:
        ValueError: `dim` is odd, negative or above 2**24, `base` is not positive, `dim` does not suit the scaling.

    Example:
        >>> posenc.scaling.frequencies(4)
        (tensor([1.0000, 0.0100], dtype=torch.float64), 1.0)
    """
    return _C.scaling.frequencies(dim, base, scaling, seq_len, exact)


def attention_scaling(scaling: Scaling) -> float:
    """Returns what multiplies cos and sin; it does not depend on the length.

    Example:
        >>> posenc.scaling.attention_scaling(posenc.scaling.Linear(4))
        1.0
    """
    return _C.scaling.attention_scaling(scaling)


def depends_on_length(scaling: Scaling) -> bool:
    """Tells whether the frequencies are a function of the sequence length.

    Example:
        >>> posenc.scaling.depends_on_length(posenc.scaling.DynamicNTK(2, 4096))
        True
    """
    return _C.scaling.depends_on_length(scaling)
