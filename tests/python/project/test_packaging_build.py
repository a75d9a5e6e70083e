"""Building: it works, or stops at once with one sentence that names the right command."""

import os
import shutil
import stat
import sys
import time

import pytest

from processes import ROOT, run

RIGHT_COMMAND = "pip install --no-build-isolation ."


def script(path, text):
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_isolated_install_stops_at_once_and_names_the_right_command(tmp_path):
    start = time.monotonic()
    output = run(
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", tmp_path, ROOT),
        expect_failure=True,
    )
    assert time.monotonic() - start < 30
    assert RIGHT_COMMAND in output
    assert "this build sees none: install torch first" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "hook", ["build_wheel", "build_editable", "prepare_metadata_for_build_wheel", "get_requires_for_build_wheel"]
)
def test_a_python_without_torch_is_told_so(hook, tmp_path):
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import build_backend; build_backend.{hook}(None)"
    output = run(sys.executable, "-S", "-c", code, cwd=tmp_path, expect_failure=True)
    assert RIGHT_COMMAND in output
    assert "Traceback" not in output


@pytest.fixture
def fake_cmake(tmp_path):
    """A cmake that writes down what it is asked; returns what runs setup.py with it."""
    log = tmp_path / "log"
    script(tmp_path / "cmake", f'#!/bin/sh\necho "$@" >> "{log}"\n')

    def build(expect_failure=False, **environment):
        output = run(
            *(sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path / "lib"),
            cwd=ROOT,
            expect_failure=expect_failure,
            PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            POSENC_BUILD_DIR=tmp_path / "build",
            **environment,
        )
        return output, log.read_text() if log.exists() else ""

    return build


def test_max_jobs_limits_the_compilers(fake_cmake):
    _, asked = fake_cmake(MAX_JOBS=3)
    assert "--parallel 3" in asked


def test_without_max_jobs_cores_and_memory_decide(fake_cmake):
    _, asked = fake_cmake(MAX_JOBS=None, CMAKE_BUILD_PARALLEL_LEVEL=None)
    jobs = int(asked.split("--parallel ")[1].split()[0])
    assert 1 <= jobs <= os.cpu_count()


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_impossible_max_jobs_are_refused(fake_cmake, value):
    output, asked = fake_cmake(expect_failure=True, MAX_JOBS=value)
    assert f"MAX_JOBS must be a positive whole number, but is '{value}'" in output
    assert "--build" not in asked


def test_force_cuda_is_answered(fake_cmake):
    output, _ = fake_cmake(FORCE_CUDA=1)
    assert "posenc has no CUDA kernels" in output
    output, _ = fake_cmake(FORCE_CUDA=0)
    assert "CUDA" not in output


def test_a_torch_that_is_a_cuda_build_needs_no_toolkit(tmp_path):
    """CMake reads torch's folder itself; torch's own package would look for a toolkit."""
    (tmp_path / "lib").mkdir()
    for name in ("libtorch_cpu.so", "libtorch_cuda.so"):
        (tmp_path / "lib" / name).write_text("")
    (tmp_path / "lib/libc10.so").write_text("__cxx1112basic_string")
    header = tmp_path / "include/torch/headeronly/version.h"
    header.parent.mkdir(parents=True)
    header.write_text("".join(f"#define TORCH_VERSION_{part}\n" for part in ("MAJOR 2", "MINOR 14", "PATCH 1")))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(p LANGUAGES NONE)\n"
        f'include("{ROOT}/cmake/PosencTorch.cmake")\nposenc_import_torch()\n'
        'message(STATUS "${POSENC_TORCH_VERSION} ${POSENC_TORCH_CXX11_ABI} ${POSENC_TORCH_CUDA}")\n'
    )
    output = run("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tmp_path}")
    assert "-- 2.14.1 1 ON" in output


def test_cmake_without_torch_says_what_to_pass(tmp_path):
    output = run(
        *("cmake", "-S", ROOT, "-B", tmp_path, "-DPOSENC_BUILD_PYTHON=OFF", "-DPOSENC_BUILD_TESTS=OFF"),
        expect_failure=True,
        CMAKE_PREFIX_PATH=None,
    )
    assert "pass -DCMAKE_PREFIX_PATH=<LibTorch's folder>" in " ".join(output.split())


def test_make_explains_its_targets():
    output = run("make", "-C", ROOT)
    for target in ("demo", "test", "bench", "lint", "build", "clean"):
        assert f"make {target} " in output


def test_missing_system_packages_are_named_where_apt_may_not_run(tmp_path):
    """A machine with bash and python alone, and no right to install."""
    for name in ("bash", "env", "python3"):
        (tmp_path / name).symlink_to(shutil.which(name) if name != "python3" else sys.executable)
    output = run(tmp_path / "bash", ROOT / "tools/system_packages", expect_failure=True, PATH=tmp_path)
    assert "sudo apt-get update && sudo apt-get install " in output
    for package in ("g++", "cmake", "libgtest-dev", "libbenchmark-dev"):
        assert package in output.splitlines()[0].split()
    assert "ninja-build" not in output
