"""The processes that measure, for each family of ops."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

FAMILIES = ("rotary", "attention", "contextual", "terms")

# glibc returns blocks of this size and more to the system when they are freed, and the next ones cost page faults.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
# The libraries that torch multiplies matrices with choose by themselves: MKL for float32, oneDNN for bfloat16.
AVX2 = {
    "POSENC_CPU_CAPABILITY": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}


@dataclass(frozen=True)
class Selection:
    """Regular expressions for the names of a family's cases; empty: none of them.

    Attributes:
        avx2: Cases to repeat at AVX2.
        kept: Those that compare with what allocates temporaries, and so care where memory comes from.
        threads: Those to repeat with all threads.
        threads_unjudged: With all threads, comparisons without a target too.
    """

    avx2: str
    kept: str
    threads: str
    threads_unjudged: bool


SELECTIONS = {
    "rotary": Selection(
        avx2=r"^(llama3-8b|llama3-8b-decode|qwen2\.5-0\.5b) ",
        kept=r"^llama3-8b ",
        threads=r"^llama3-8b forward(\+backward)? float32 ",
        threads_unjudged=False,
    ),
    "attention": Selection(
        # In bfloat16 one length each: without AMX, torch takes seconds for a long call.
        avx2=r"^attention (?!causal .*bfloat16)|^attention causal (2048x64 forward|1024x64 forward\+backward) bfloat16",
        kept=r"^attention trained table",
        threads=r"^attention (causal (1 head )?2048x64|decode)",
        threads_unjudged=True,
    ),
    "contextual": Selection(
        avx2=r"^contextual ",
        kept=r"^contextual CoPE eager",
        threads=r"^contextual CoPE npos 64 2048x64 forward\+backward float32",
        threads_unjudged=True,
    ),
    "terms": Selection(avx2=r"^terms .*2048x64", kept="", threads="", threads_unjudged=False),
}


@dataclass(frozen=True)
class Setup:
    """One process.

    Attributes:
        select: Regular expression for the names of its cases.
        judged_only: Leaves out comparisons without a target.
    """

    family: str
    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    select: str = ""
    threads: int = 1
    judged_only: bool = True

    @property
    def judged(self) -> bool:
        """Targets are for one thread."""
        return self.threads == 1


def first(family: str) -> Setup:
    """Every case, with what a plain program has."""
    return Setup(family, f"{family.capitalize()}, default allocator", judged_only=False)


def further(family: str, instruction_set: str, threads: int) -> Iterator[Setup]:
    """The others. AVX2 is a setup of its own where the first one had AVX-512."""
    cases, name = SELECTIONS[family], family.capitalize()
    if cases.kept:
        yield Setup(family, f"{name}, allocator that keeps memory", KEEP_MEMORY, cases.kept)
    if "posenc avx512" in instruction_set:
        yield Setup(family, f"{name}, AVX2, default allocator", AVX2, cases.avx2)
    if threads > 1 and cases.threads:
        title = f"{name}, {threads} threads, not judged"
        yield Setup(family, title, {}, cases.threads, threads, judged_only=not cases.threads_unjudged)
