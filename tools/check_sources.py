"""Rules of this repository that no common linter knows. Prints each breach as FILE:LINE: RULE and then exits with 1."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("csrc", "python", "tests", "examples", "benchmarks", "docs", "cmake", "tools", "requirements", ".ci")
SUFFIXES = {".cpp", ".h", ".py", ".pyi", ".cmake", ".in", ".txt", ".md", ".toml", ".csv", ""}
# What a build puts beside the sources.
BUILT = ("python/posenc/include", "python/posenc/lib", "python/posenc/share")
MAX_LINES = 450

Rule = tuple[str, Callable[[str], bool], "re.Pattern[str]"]


RULES: list[Rule] = [
    (
        "csrc includes only the torch headers that it needs, no collection of all",
        lambda path: path.startswith("csrc/"),
        re.compile(r"#include <torch/(all|extension|torch)\.h>"),
    ),
    (
        "kernels include no tensors: raw pointers, sizes and strides",
        lambda path: path.startswith("csrc/") and path.endswith(("/kernel.cpp", "/kernel.h")),
        re.compile(r"#include <(torch/|ATen/(?!cpu/vec/)|c10/core/)"),
    ),
    (
        "in an op's folder schema.cpp alone declares ops",
        lambda path: path.startswith("csrc/") and path.count("/") > 1 and not path.endswith("/schema.cpp"),
        re.compile(r"\bm\.def\("),
    ),
    (
        "ops are registered with the macros of common/registration.h, which a second copy of the library survives",
        lambda path: path.startswith("csrc/") and path != "csrc/common/registration.h",
        re.compile(r"\bTORCH_LIBRARY(_IMPL|_FRAGMENT)?\("),
    ),
    (
        "no folder of one machine",
        lambda path: True,
        re.compile(r"(?<![\w.:)}-])/(work|root|home|tmp|Users)/"),
    ),
    (
        "unfinished work belongs in the issues",
        lambda path: True,
        re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b"),
    ),
]


def sources() -> Iterator[Path]:
    yield from (path for path in ROOT.iterdir() if path.is_file() and not path.name.startswith("."))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            relative = path.relative_to(ROOT).as_posix()
            inside = relative.removeprefix(".ci/")
            generated = relative.startswith(BUILT) or re.search(r"(^|/)(\.|__pycache__|.*\.egg-info/)", inside)
            if path.is_file() and path.suffix in SUFFIXES and not generated:
                yield path


def breaches(path: Path) -> Iterator[str]:
    relative = path.relative_to(ROOT).as_posix()
    lines = path.read_text(encoding="utf-8").splitlines()
    if len(lines) > MAX_LINES and path.suffix in {".cpp", ".h", ".py"}:
        yield f"{relative}:{len(lines)}: a file holds one thing: at most {MAX_LINES} lines"
    for name, applies, pattern in RULES:
        if applies(relative):
            for number, line in enumerate(lines, start=1):
                if pattern.search(line):
                    yield f"{relative}:{number}: {name}"


def unlisted() -> Iterator[str]:
    """Sources that CMakeLists.txt does not name: they would be left out of the build without a word."""
    cmake = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8").split()
    named = {word.rstrip(")") for word in cmake}
    for folder in ("csrc", "python/bindings"):
        for path in sorted((ROOT / folder).rglob("*.cpp")):
            if path.relative_to(ROOT).as_posix() not in named:
                yield f"{path.relative_to(ROOT)}:1: CMakeLists.txt lists every source"


def main() -> None:
    found = [breach for path in sources() for breach in breaches(path)] + list(unlisted())
    print("\n".join(found) if found else "Own rules: all hold.")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
