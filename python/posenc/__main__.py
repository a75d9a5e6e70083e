"""`python -m posenc --info` and `--cmake-dir`."""

import argparse
import platform
from pathlib import Path


def _info() -> str:
    import torch

    import posenc
    from posenc import _C

    lines = [
        f"posenc: {posenc.__version__}",
        f"torch: {torch.__version__}",
        f"python: {platform.python_version()}",
        f"instruction set in use: {_C.cpu_capability()}",
        f"threads: {torch.get_num_threads()}",
        "built with:",
        *(f"  {line}" for line in _C.build_info().splitlines()),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m posenc", description="Facts about this installation of posenc.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--cmake-dir",
        action="store_true",
        help="folder for a C++ project: cmake -DCMAKE_PREFIX_PATH=$(python -m posenc --cmake-dir)",
    )
    what.add_argument("--info", action="store_true", help="versions, instruction set, threads, how it was built")
    if parser.parse_args().cmake_dir:
        print(Path(__file__).resolve().parent / "share" / "cmake" / "posenc")
    else:
        print(_info())


if __name__ == "__main__":
    main()
