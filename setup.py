"""Drives CMake, which is the only build; pyproject.toml holds the metadata.

Environment: MAX_JOBS, parallel compilations (default: what cores and memory allow); POSENC_BUILD_DIR, CMake's build
folder; POSENC_CMAKE_ARGS, more arguments for CMake.
"""

import os
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent

# Peak of a compiler on the heaviest torch headers.
_KILOBYTES_PER_JOB = 2 * 1024**2


def torch_requirement() -> str:
    """The torch that a built posenc runs with: the minor version it was built against."""
    try:
        major, minor = version("torch").split(".")[:2]
    except PackageNotFoundError:  # a source distribution is made without torch
        return "torch>=2.11"
    return f"torch=={major}.{minor}.*"


def jobs() -> int:
    for name in ("MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL"):
        value = os.environ.get(name)
        if value:
            if not value.isdigit() or int(value) < 1:
                sys.exit(f"{name} must be a positive whole number, but is {value!r}")
            return int(value)
    lines = Path("/proc/meminfo").read_text().splitlines()
    [available] = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return max(1, min(len(os.sched_getaffinity(0)), available // _KILOBYTES_PER_JOB))


class CMakeBuild(build_ext):
    """Configures, builds and installs into the package's folder: that of the sources if editable, else the wheel's."""

    def run(self) -> None:
        editable = self.inplace or self.editable_mode
        package = ROOT / "python" / "posenc" if editable else Path(self.build_lib).resolve() / "posenc"
        kind = "editable" if editable else "wheel"
        default = ROOT / "build" / f"{sys.implementation.cache_tag}-torch-{version('torch').split('+')[0]}-{kind}"
        build = Path(os.environ.get("POSENC_BUILD_DIR") or default).resolve()
        configure = [
            *("cmake", "-S", str(ROOT), "-B", str(build), f"-DPython_EXECUTABLE={sys.executable}"),
            f"-DPOSENC_BIND_TORCH={'ON' if editable else 'OFF'}",
            *("-DPOSENC_BUILD_TESTS=OFF", "-DPOSENC_BUILD_EXAMPLES=OFF", "-DPOSENC_BUILD_BENCHMARKS=OFF"),
            *shlex.split(os.environ.get("POSENC_CMAKE_ARGS", "")),
        ]
        if shutil.which("ninja") and not (build / "CMakeCache.txt").exists():
            configure.append("-GNinja")
        if os.environ.get("FORCE_CUDA", "0") != "0":
            print("posenc: FORCE_CUDA is set, but posenc has no CUDA kernels; building for the CPU", file=sys.stderr)
        self._step(configure)
        self._step(["cmake", "--build", str(build), "--parallel", str(jobs())])
        # Headers that are gone from the sources must not stay behind.
        shutil.rmtree(package / "include", ignore_errors=True)
        for component in ("library", "python"):
            self._step(["cmake", "--install", str(build), "--prefix", str(package), "--component", component])

    def _step(self, command: list[str]) -> None:
        silent = self.distribution.verbose == 0 and "--build" not in command
        done = subprocess.run(command, stdout=subprocess.DEVNULL if silent else None)
        if done.returncode != 0:
            sys.exit(f"posenc: the build stopped in `{shlex.join(command)}`")

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


setup(
    ext_modules=[Extension("posenc._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    install_requires=[torch_requirement()],
)
