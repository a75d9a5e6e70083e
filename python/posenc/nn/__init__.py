"""Modules of posenc: one for each positional encoding, the layer :class:`Attention` that takes them, and
:class:`KVCache`.

For an encoding of your own derive from the base of its family: :class:`AbsoluteEncoding` is added to embeddings,
:class:`RotaryEncoding` rotates queries and keys, :class:`ScoreEncoding` acts on attention scores, and of those
:class:`AdditiveEncoding` adds a bias (``ScoreTerms``, given a ``ScoreCall``). :class:`Attention` takes it like the
others.

`posenc.nn.cpp` holds the C++ modules of the same names, for comparison and for sharing with C++ code; use those below
from Python.
"""

from posenc import _C
from posenc.nn.absolute import AbsoluteEncoding
from posenc.nn.additive import AdditiveEncoding, ScoreCall, ScoreTerms
from posenc.nn.alibi import ALiBi
from posenc.nn.attention import Attention
from posenc.nn.axial_rotary import AxialRotary
from posenc.nn.cape import CAPE
from posenc.nn.cope import CoPE
from posenc.nn.decomposed_relative import DecomposedRelative
from posenc.nn.disentangled_relative import DisentangledRelative
from posenc.nn.fire import FIRE
from posenc.nn.forgetting_bias import ForgettingBias
from posenc.nn.grid_relative_bias import GridRelativeBias
from posenc.nn.kerple import Kerple
from posenc.nn.kv_cache import KVCache
from posenc.nn.learned_absolute import LearnedAbsolute
from posenc.nn.multimodal_rotary import MultimodalRotary
from posenc.nn.op_call import OpCall
from posenc.nn.rerope import ReRoPE
from posenc.nn.rotary import Rotary, RotaryEncoding
from posenc.nn.sandwich import Sandwich
from posenc.nn.score import ScoreEncoding
from posenc.nn.self_extend import SelfExtend
from posenc.nn.shaw_relative import ShawRelative
from posenc.nn.sinusoidal import Sinusoidal
from posenc.nn.t5_relative_bias import T5RelativeBias
from posenc.nn.transformer_xl import TransformerXL
from posenc.nn.xpos import XPos

cpp = _C.nn

__all__ = [
    "ALiBi",
    "CAPE",
    "FIRE",
    "GridRelativeBias",
    "Kerple",
    "Sandwich",
    "T5RelativeBias",
    "Attention",
    "AxialRotary",
    "KVCache",
    "LearnedAbsolute",
    "MultimodalRotary",
    "Rotary",
    "Sinusoidal",
    "TransformerXL",
    "XPos",
    "CoPE",
    "DecomposedRelative",
    "DisentangledRelative",
    "ForgettingBias",
    "ReRoPE",
    "SelfExtend",
    "ShawRelative",
    "AbsoluteEncoding",
    "AdditiveEncoding",
    "OpCall",
    "RotaryEncoding",
    "ScoreCall",
    "ScoreEncoding",
    "ScoreTerms",
    "cpp",
]
