"""posenc in models of Hugging Face transformers.

``import posenc.hf`` registers ``attn_implementation="posenc"`` with transformers, and nothing else. ``import posenc``
alone imports no transformers. Where transformers is not installed, configurations are read from their dicts, and
:func:`register` says what to install.
"""

import warnings as _warnings
from importlib.util import find_spec as _find_spec

from posenc.hf.check import Comparison, check
from posenc.hf.registration import register
from posenc.hf.report import Report, report
from posenc.hf.rope import RopeConfig, multimodal_rotary_arguments, read_rope, rotary_arguments

__all__ = [
    "Comparison",
    "Report",
    "RopeConfig",
    "check",
    "multimodal_rotary_arguments",
    "read_rope",
    "register",
    "report",
    "rotary_arguments",
]

if _find_spec("transformers") is not None:
    try:
        register()
    except ImportError as _error:
        # Configurations can be read all the same.
        _warnings.warn(str(_error), stacklevel=2)
