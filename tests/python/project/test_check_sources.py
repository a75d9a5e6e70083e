"""tools/check_sources.py finds what it says it finds, in small repositories made for that."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from processes import ROOT

CLEAN = {
    "CMakeLists.txt": "set(POSENC_KERNEL_SOURCES\n  csrc/attention/loops.cpp)\n",
    "csrc/attention/loops.cpp": '#include "attention/tile.h"\n',
    "csrc/attention/tile.h": '#include "matmul.h"\n#include <ATen/cpu/vec/vec.h>\n#include <c10/util/Half.h>\n',
    "csrc/attention/matmul.h": "#include <posenc/widths.h>\n",
    "csrc/include/posenc/widths.h": "#include <cstdint>\n",
    "csrc/attention/cpu.cpp": "#include <ATen/core/Tensor.h>\n",
}


def check(folder: Path, files: dict[str, str]) -> tuple[int, str]:
    (folder / "tools").mkdir()
    shutil.copy(ROOT / "tools/check_sources.py", folder / "tools")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run([sys.executable, "tools/check_sources.py"], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_clean_repository_passes(tmp_path):
    assert check(tmp_path, CLEAN) == (0, "Own rules: all hold.\n")


@pytest.mark.parametrize(
    "file", ["attention/loops.cpp", "attention/tile.h", "attention/matmul.h", "include/posenc/widths.h"]
)
@pytest.mark.parametrize("header", ["torch/types.h", "ATen/ATen.h", "ATen/cpu/Utils.h", "c10/core/Scalar.h"])
def test_a_kernel_file_that_includes_tensors_is_reported(tmp_path, file, header):
    text = CLEAN[f"csrc/{file}"] + f"#  include <{header}>\n"
    code, output = check(tmp_path, CLEAN | {f"csrc/{file}": text})
    assert code == 1
    assert f"csrc/{file}:{text.count(chr(10))}: kernel files include no tensors, but {header} is included by" in output
    assert output.rstrip().endswith("csrc/attention/loops.cpp")


def test_kernel_sources_may_be_a_pattern(tmp_path):
    files = CLEAN | {
        "CMakeLists.txt": "file(GLOB POSENC_KERNEL_SOURCES CONFIGURE_DEPENDS csrc/*/loops*.cpp)\n",
        "csrc/rotary/loops_forward.cpp": "#include <torch/torch.h>\n",
    }
    code, output = check(tmp_path, files)
    assert code == 1
    assert "csrc/rotary/loops_forward.cpp:1: kernel files include no tensors" in output


def test_a_list_of_kernel_sources_that_names_no_file_is_reported(tmp_path):
    code, output = check(tmp_path, CLEAN | {"CMakeLists.txt": "set(POSENC_KERNEL_SOURCES csrc/gone.cpp)\n"})
    assert code == 1
    assert "POSENC_KERNEL_SOURCES" in output


@pytest.mark.parametrize(
    ("file", "text", "rule"),
    [
        ("csrc/nn/rotary.cpp", "#include <torch/all.h>\n", "only the torch headers that it needs"),
        ("csrc/rotary/autograd.cpp", 'm.def("rotary");\n', "schema.cpp alone declares ops"),
        ("docs/page.md", "see /" + "tmp/notes\n", "no folder of one machine"),
        ("python/posenc/ops.py", "# TO" + "DO\n", "unfinished work belongs in the issues"),
        ("csrc/rotary/kernel.cpp", "\n" * 451, "at most 450 lines"),
        ("csrc/rotary/kernel.cpp", "// " + "x" * 118 + "\n", "at most 120 characters"),
    ],
)
def test_a_breach_of_another_rule_is_reported(tmp_path, file, text, rule):
    code, output = check(tmp_path, CLEAN | {file: text})
    assert code == 1
    assert f"{file}:" in output and rule in output
