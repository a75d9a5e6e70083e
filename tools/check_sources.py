"""Rules of this repository that no common linter knows. Prints each breach as FILE:LINE: RULE and then exits with 1."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("csrc", "python", "tests", "examples", "benchmarks", "docs", "cmake", "tools", "requirements")
HIDDEN_FOLDERS = (".ci", ".github")
SUFFIXES = {".cpp", ".h", ".py", ".pyi", ".cmake", ".in", ".txt", ".md", ".toml", ".csv", ".json", ".yml", ".cff", ""}
# What a build puts beside the sources.
BUILT = ("python/posenc/include", "python/posenc/lib", "python/posenc/share")
MAX_LINES = 450
TENSOR_HEADERS = re.compile(r"torch/|ATen/(?!cpu/vec/)|c10/core/")

Rule = tuple[str, Callable[[str], bool], "re.Pattern[str]"]


RULES: list[Rule] = [
    (
        "csrc includes only the torch headers that it needs, no collection of all",
        lambda path: path.startswith("csrc/"),
        re.compile(r"#include <torch/(all|extension|torch)\.h>"),
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
        "a line of C++ has at most 120 characters",  # of Python ruff says it
        lambda path: path.endswith((".cpp", ".h")),
        re.compile(r".{121}"),
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
    for folder in FOLDERS + HIDDEN_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            relative = path.relative_to(ROOT).as_posix()
            inside = path.relative_to(ROOT / folder).as_posix()
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


def kernel_sources() -> list[Path]:
    """The files that CMakeLists.txt compiles once per instruction set."""
    listed = re.search(r"POSENC_KERNEL_SOURCES\s([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    words = listed.group(1).split() if listed else []
    return sorted(path for word in words if word.endswith(".cpp") for path in ROOT.glob(word))


def included(path: Path) -> Iterator[tuple[int, str, Path | None]]:
    """Line, name and, if it is one of ours, file of everything that a file includes."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if match := re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line):
            name = match.group(1)
            folders = (path.parent, ROOT / "csrc", ROOT / "csrc/include")
            yield number, name, next((folder / name for folder in folders if (folder / name).is_file()), None)


def kernel_breaches() -> Iterator[str]:
    """Kernel files are those compiled once per instruction set and what they include of csrc, directly or not.

    They take raw pointers, sizes and strides. A header of tensors would bring inline functions compiled for one
    instruction set, which the linker may keep for the whole library.
    """
    sources = kernel_sources()
    if not sources:
        yield "CMakeLists.txt:1: POSENC_KERNEL_SOURCES names the files that are compiled once per instruction set"
    reached_from: dict[Path, Path | None] = dict.fromkeys(sources)
    waiting = list(sources)
    while waiting:
        path = waiting.pop()
        for number, name, file in included(path):
            if TENSOR_HEADERS.match(name):
                way = [path]
                while (above := reached_from[way[-1]]) is not None:
                    way.append(above)
                names = " <- ".join(step.relative_to(ROOT).as_posix() for step in way)
                yield (
                    f"{path.relative_to(ROOT).as_posix()}:{number}: kernel files include no tensors, but {name} is "
                    f"included by {names}"
                )
            if file is not None and file not in reached_from:
                reached_from[file] = path
                waiting.append(file)


def main() -> None:
    found = [breach for path in sources() for breach in breaches(path)] + list(kernel_breaches())
    print("\n".join(found) if found else "Own rules: all hold.")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
