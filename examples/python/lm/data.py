"""Text as bytes: which files, what is held out, and how windows are drawn from it."""

import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch

MAX_BYTES = 64 * 2**20
"""Files beyond this many bytes, in hash order, are left out."""

HELD_OUT = 20
"""One byte in this many is held out for validation."""

SKIPPED_FOLDERS = frozenset({"__pycache__", "dist-packages", "site-packages", "test", "tests", "idle_test"})
"""Folders of the standard library that hold no source text of its own."""


class DataError(Exception):
    """Input that cannot be used; the message is one line for the user."""


@dataclass(frozen=True)
class Corpus:
    """Training and held-out text, each a one-dimensional uint8 tensor."""

    path: Path
    train: torch.Tensor
    validation: torch.Tensor
    files: int
    files_left_out: int


def load_corpus(path: Path | None = None) -> Corpus:
    """Reads a file, or all files below a folder; without a path the standard library of this Python.

    The split is by file and depends on names and sizes alone: files are ordered by the FNV-1a hash of their relative
    name, and those that fit into a twentieth of all bytes are held out. Where no file fits (a single one, or all are
    large) the last twentieth of the text is held out instead.

    Raises:
        DataError: nothing readable is there, or too little of it.
    """
    pattern = ""
    if path is None:
        path, pattern = Path(sysconfig.get_path("stdlib")), ".py"
    names = _list_files(path, pattern)
    contents: list[bytes] = []
    total = 0
    for name in sorted(names, key=lambda name: (fnv1a(os.fsencode(name)), name)):
        file = path / name if path.is_dir() else path
        if contents and total + file.stat().st_size > MAX_BYTES:
            continue
        contents.append(_read(file))
        total += len(contents[-1])

    to_hold_out = total // HELD_OUT
    train, validation = bytearray(), bytearray()
    for content in contents:
        fits = len(validation) + len(content) <= to_hold_out
        (validation if fits else train).extend(content)
    if len(validation) < to_hold_out // 2:
        text = b"".join(contents)
        train, validation = bytearray(text[: total - to_hold_out]), bytearray(text[total - to_hold_out :])
    return Corpus(path, _tensor(train), _tensor(validation), len(contents), len(names) - len(contents))


def check_size(corpus: Corpus, context: int, longest: int) -> None:
    """Raises DataError where no training window of `context` or no validation window of `longest` bytes fits."""
    if len(corpus.train) <= context or len(corpus.validation) <= longest:
        needed = HELD_OUT * (longest + 1)
        raise DataError(
            f"{corpus.path} is too small: {len(corpus.train) + len(corpus.validation)} bytes, and about {needed} are "
            f"needed to hold out a window of {longest} bytes"
        )


def training_batch(
    text: torch.Tensor, batch: int, context: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random windows and the bytes that follow each position, both (batch, context) int64."""
    starts = torch.randint(0, len(text) - context, (batch, 1), generator=generator)
    windows = text[starts + torch.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def validation_segments(text: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """`count` segments of length + 1 bytes (fewer where the text is short), spread evenly over it, without overlap.

    Shape: (count, length + 1), int64. Each segment holds `length` predictions; cutting it into shorter windows keeps
    the predicted bytes the same, so losses at different lengths can be compared.
    """
    last = len(text) - length - 1
    count = min(count, last // length + 1)
    starts = torch.tensor([index * last // max(count - 1, 1) for index in range(count)])
    return text[starts[:, None] + torch.arange(length + 1)].long()


def fnv1a(data: bytes) -> int:
    """The 64-bit FNV-1a hash: short enough to be the same in every language."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def _list_files(path: Path, suffix: str) -> list[str]:
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if path.is_file():
        return [path.name]
    if not path.is_dir():
        raise DataError(f"{path} is neither a file nor a folder")

    def refuse(error: OSError) -> None:
        raise DataError(f"cannot read {error.filename}: {error.strerror}")

    names = []
    for folder, subfolders, files in os.walk(path, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and name not in SKIPPED_FOLDERS]
        for name in files:
            file = Path(folder, name)
            if name.endswith(suffix) and not name.startswith(".") and file.is_file():
                names.append(file.relative_to(path).as_posix())
    if not names:
        raise DataError(f"{path} holds no files")
    return names


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _tensor(text: bytearray) -> torch.Tensor:
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
