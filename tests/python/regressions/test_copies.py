"""A second copy of libposenc, or of the package, in one process is refused with one message, and the first works on."""

import importlib.machinery
import shutil
from pathlib import Path

import pytest

import posenc
from processes import python

LIBRARY = Path(posenc.__file__).parent / "lib" / "libposenc.so"
EXTENSION = Path(posenc._C.__file__)
WORKS = "q = torch.randn(1, 2, 5, 8); y = posenc.nn.ALiBi(2).attend(q, q, q, is_causal=True); assert y.isfinite().all()"


@pytest.fixture
def copy(tmp_path):
    return shutil.copy(LIBRARY, tmp_path / "libposenc_copy.so")


@pytest.mark.parametrize("load", ["torch.ops.load_library", "ctypes.CDLL"])
def test_a_second_library_registers_nothing_and_says_so_once(copy, load):
    printed = python(f"import ctypes, torch, posenc\n{load}({str(copy)!r})\n{WORKS}\nprint('worked on')")
    message = "this process has loaded another copy of libposenc, which serves all calls"
    assert printed.count(message) == 1
    assert printed.count(f"The copy at {copy} registers no ops: load one copy only.") == 1
    assert printed.strip().endswith("worked on")


def test_the_first_library_serves_whoever_loads_it_first(copy):
    printed = python(f"import torch\ntorch.ops.load_library({str(copy)!r})\nimport posenc\n{WORKS}\nprint('worked on')")
    assert printed.strip().endswith("worked on")


def test_a_second_package_is_an_import_error(tmp_path):
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    shutil.copytree(LIBRARY.parent, tmp_path / "lib")
    other = shutil.copy(EXTENSION, tmp_path / f"_C{suffix}")
    printed = python(
        f"""
import importlib.util, torch, posenc
spec = importlib.util.spec_from_file_location("other._C", {str(other)!r})
try:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
except ImportError as error:
    print(error)
{WORKS}
print('worked on')"""
    )
    assert "this process has imported another copy of posenc already, which goes on to work" in printed
    assert printed.strip().endswith("worked on")
