"""Modules of posenc: one for each positional encoding.

`posenc.nn.cpp` holds the C++ modules of the same names, for comparison and for sharing with C++ code; those below are
the ones to use from Python.
"""

from posenc import _C
from posenc.nn.axial_rotary import AxialRotary
from posenc.nn.cape import CAPE
from posenc.nn.learned_absolute import LearnedAbsolute
from posenc.nn.multimodal_rotary import MultimodalRotary
from posenc.nn.rotary import Rotary
from posenc.nn.sinusoidal import Sinusoidal
from posenc.nn.xpos import XPos

cpp = _C.nn

__all__ = [
    "CAPE",
    "AxialRotary",
    "LearnedAbsolute",
    "MultimodalRotary",
    "Rotary",
    "Sinusoidal",
    "XPos",
    "cpp",
]
