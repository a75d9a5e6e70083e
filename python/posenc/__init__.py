"""Positional encodings for PyTorch, as fused ops and modules.

`posenc.ops` are functions of tensors, `posenc.nn` modules, `posenc.scaling` the ways to stretch rotary encodings to
longer contexts, `posenc.positions` helpers that compute positions. The same names exist in C++. `posenc.hf` puts posenc
into models of Hugging Face transformers, `posenc.sdpa` in the place of torch's scaled_dot_product_attention on CPUs;
`posenc.export` takes its ops out of exported programs; `posenc.plot` draws what encodings do.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import torch as _torch


def _check_torch() -> None:
    """Raises where posenc was built for another torch, before a library that does not fit is loaded."""
    try:
        from posenc import _build_info as built
    except ImportError as error:
        raise ImportError(
            "posenc is not built: run `pip install --no-build-isolation .` (or `make build`) in its source folder"
        ) from error
    abi = int(_torch.compiled_with_cxx11_abi())
    if _minor(built.torch_version) != _minor(_torch.__version__) or built.torch_cxx11_abi != abi:
        raise ImportError(
            f"posenc {built.version} was built for torch {built.torch_version} (C++11 ABI {built.torch_cxx11_abi}), "
            f"but torch {_torch.__version__} (C++11 ABI {abi}) is installed: rebuild it in its source folder with "
            "`pip install --no-build-isolation --no-deps --force-reinstall .`"
        )


def _minor(version: str) -> list[str]:
    return version.split("+")[0].split(".")[:2]


_check_torch()

from posenc import _C as _C  # noqa: E402  (first: it loads libposenc, which defines the ops)
from posenc import export, nn, ops, plot, positions, scaling, sdpa  # noqa: E402
from posenc._build_info import version as __version__  # noqa: E402

__all__ = ["__version__", "export", "hf", "nn", "ops", "plot", "positions", "scaling", "sdpa"]

if _TYPE_CHECKING:
    from posenc import hf


def __getattr__(name: str) -> _Any:
    """Imports ``posenc.hf``, and with it transformers where that is installed, when it is first used."""
    if name == "hf":
        from importlib import import_module

        return import_module("posenc.hf")
    raise AttributeError(f"module 'posenc' has no attribute {name!r}")
