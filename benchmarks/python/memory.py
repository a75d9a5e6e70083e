"""Peak memory of attention, forward and backward, beyond its inputs, outputs and gradients.

As a program, measures one implementation in this process, which has to be fresh, and prints the bytes: the largest
resident set of a process never falls.
"""

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from results import Bound, Section

TITLE = "Attention, peak memory of forward and backward"
HEADS, TOKENS, HEAD_DIM = 8, 16384, 64
SMOKE_TOKENS = 256
# A fixed threshold: glibc raises it as blocks are freed, and what then stays in its heap would count.
MAP_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
IMPLEMENTATIONS = (("attention", "float32"), ("attention", "bfloat16"), ("SDPA", "float32"))
MIB = 1 << 20


def names(smoke: bool) -> Iterator[tuple[str, str, str]]:
    """Case, implementation and dtype of all that is measured."""
    for implementation, dtype in IMPLEMENTATIONS:
        size = f"tiny memory {SMOKE_TOKENS}" if smoke else f"memory {TOKENS}"
        yield f"attention {size}x{HEAD_DIM} forward+backward {dtype}", implementation, dtype


def measure(cases: list[tuple[str, str, str]], environment: dict[str, str], threads: int, smoke: bool) -> Section:
    """Each case in a process of its own, in `environment`."""
    bounds = []
    for case, implementation, dtype in cases:
        print(case, file=sys.stderr, flush=True)
        tokens = SMOKE_TOKENS if smoke else TOKENS
        command = [sys.executable, str(Path(__file__)), implementation, dtype, str(tokens)]
        done = subprocess.run(command, env=environment | MAP_BLOCKS, check=True, stdout=subprocess.PIPE, text=True)
        target = _target(tokens, dtype, threads) / MIB if implementation == "attention" and not smoke else None
        bounds.append(Bound(f"{case}: {implementation}", int(done.stdout) / MIB, target, "MiB"))
    return Section(TITLE, {"threads": str(threads)}, [], bounds)


def _target(tokens: int, dtype: str, threads: int) -> float:
    """Bytes that grow with the tokens alone, where the scores of one head would be 1 GiB.

    For each head float32 sums of the gradients of keys and values, the output before it is rounded, and four numbers
    per query; for each thread one head's keys and values in float32, and 4 MiB.
    """
    row = tokens * HEAD_DIM * 4
    per_head = 2 * row + (row if dtype == "bfloat16" else 0) + 4 * tokens * 4
    return HEADS * per_head + threads * (2 * row + 4 * MIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("implementation", choices=sorted({name for name, _ in IMPLEMENTATIONS}))
    parser.add_argument("dtype", choices=sorted({dtype for _, dtype in IMPLEMENTATIONS}))
    parser.add_argument("tokens", type=int)
    options = parser.parse_args()

    import torch

    import attention_peers
    import posenc

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dtype = getattr(torch, options.dtype)

    def tensors(tokens: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        q, k, v, gradient = (torch.randn(1, HEADS, tokens, HEAD_DIM, dtype=dtype) for _ in range(4))
        return [x.requires_grad_() for x in (q, k, v)], gradient

    def run(inputs: list[torch.Tensor], gradient: torch.Tensor) -> int:
        """Bytes of what stays."""
        if options.implementation == "attention":
            out = posenc.ops.attention(*inputs, is_causal=True)
        else:
            (out,) = attention_peers.sdpa(*inputs)
        return sum(x.nbytes for x in (out, *torch.autograd.grad(out, inputs, gradient)))

    run(*tensors(64))  # libraries, and the threads of the backward pass
    inputs, gradient = tensors(options.tokens)
    before = _peak()
    kept = run(inputs, gradient)
    print(max(0, _peak() - before - kept))


def _peak() -> int:
    """Bytes of the largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
