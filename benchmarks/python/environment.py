"""What the numbers depend on: processor, versions, commit, and the same process's copy rate and arithmetic peak."""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch

import posenc

ROOT = Path(__file__).parents[2]


def facts() -> dict[str, str]:
    """Names and values, ready to print."""
    return {
        "CPU": f"{_cpu_info('model name') or platform.machine()}, {os.cpu_count()} cores",
        "instruction set": f"posenc {posenc._C.cpu_capability()}, torch {torch.backends.cpu.get_cpu_capability()}",
        "bfloat16 products of torch": bfloat16_products(),
        "threads": str(torch.get_num_threads()),
        "versions": f"posenc {posenc.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "commit": commit(),
        "copy": f"{_copy_rate() / 1e9:.1f} GB/s read and written (128 MiB to 128 MiB)",
        "GEMM": f"{_gemm_rate() / 1e9:.0f} GF/s (float32, 1024 x 1024 x 1024)",
        "load": f"{os.getloadavg()[0]:.1f} (one-minute average before measuring)",
    }


AMX, AVX512_BF16, VECTORS = "AMX tiles", "AVX512-BF16 instructions", "vector instructions"


def bfloat16_products() -> str:
    """What torch multiplies bfloat16 matrices with: what the processor has, where oneDNN is not held back."""
    flags, limit = _cpu_info("flags").split(), os.environ.get("ONEDNN_MAX_CPU_ISA", "DEFAULT").upper()
    free = limit in ("DEFAULT", "ALL")
    if "amx_bf16" in flags and (free or "AMX" in limit):
        return AMX
    if "avx512_bf16" in flags and (free or "AMX" in limit or limit.endswith(("BF16", "FP16"))):
        return AVX512_BF16
    return VECTORS


def commit() -> str:
    """Short hash of HEAD, and whether the working tree differs from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--", "csrc", "python", "CMakeLists.txt", "cmake")
    except (OSError, subprocess.CalledProcessError):
        return "uncommitted"
    return f"{head} with changes" if changed else head


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _cpu_info(field: str) -> str:
    """Of the first processor that Linux lists, or nothing."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def _copy_rate() -> float:
    """Bytes per second read plus written by one copy between buffers that are already mapped."""
    source = torch.ones(32 << 20)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source))


def _gemm_rate() -> float:
    """Floating-point operations per second of a float32 matrix product."""
    size = 1024
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    return 2 * size**3 / _fastest(lambda: torch.mm(left, right, out=out))


def _fastest(run: Callable[[], object]) -> float:
    run()
    seconds = []
    for _ in range(7):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
