"""Peak memory of attention, forward and backward, beyond its inputs, outputs and gradients.

As a program, measures one implementation in this process, which has to be fresh, and prints the bytes: the largest
resident set of a process never falls.
"""

import argparse
import os
import resource
import sys
from collections.abc import Callable, Iterator

import launch
from results import Bound, Section

TITLE = "Attention, peak memory of forward and backward"
HEADS, TOKENS, HEAD_DIM = 8, 16384, 64
SMOKE_TOKENS = 256
# Of CoPE.
POSITIONS = 64
# A fixed threshold: glibc raises it as blocks are freed, and what then stays in its heap would count.
MAP_BLOCKS = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
MEASURED = (("attention", "float32"), ("attention", "bfloat16"), ("SDPA", "float32"))
IMPLEMENTATIONS = ("attention", "SDPA", "CoPE", "CoPE eager")
MIB = 1 << 20


def names(smoke: bool) -> Iterator[tuple[str, str, str]]:
    """Case, implementation and dtype of all that `measure` takes."""
    for implementation, dtype in MEASURED:
        size = f"tiny memory {SMOKE_TOKENS}" if smoke else f"memory {TOKENS}"
        yield f"attention {size}x{HEAD_DIM} forward+backward {dtype}", implementation, dtype


def measure(cases: list[tuple[str, str, str]], threads: int, smoke: bool) -> Section:
    """All threads, since each has memory of its own."""
    bounds = []
    for case, implementation, dtype in cases:
        print(case, file=sys.stderr, flush=True)
        tokens = SMOKE_TOKENS if smoke else TOKENS
        value = peak(implementation, dtype, HEADS, tokens, threads) / MIB
        target = _target(tokens, dtype, threads) / MIB if implementation == "attention" and not smoke else None
        bounds.append(Bound(f"{case}: {implementation}", value, target, "MiB"))
    return Section(TITLE, {"threads": str(threads)}, [], bounds)


def peak(implementation: str, dtype: str, heads: int, tokens: int, threads: int) -> int:
    """Bytes, measured in a process of its own."""
    return int(launch.run("memory.py", [implementation, dtype, str(heads), str(tokens)], threads, MAP_BLOCKS))


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
    parser.add_argument("implementation", choices=IMPLEMENTATIONS)
    parser.add_argument("dtype")
    parser.add_argument("heads", type=int)
    parser.add_argument("tokens", type=int)
    options = parser.parse_args()

    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    dtype = getattr(torch, options.dtype)

    def tensors(tokens: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        q, k, v, gradient = (torch.randn(1, options.heads, tokens, HEAD_DIM, dtype=dtype) for _ in range(4))
        more = [0.1 * torch.randn(1, HEAD_DIM, POSITIONS, dtype=dtype)] if "CoPE" in options.implementation else []
        return [x.requires_grad_() for x in (q, k, v, *more)], gradient

    def run(tokens: int) -> int:
        """Bytes that the peak grows by, less those of what stays."""
        inputs, gradient = tensors(tokens)
        attend = _implementation(options.implementation, tokens)
        before = _largest()
        (out,) = attend(*inputs)
        kept = sum(x.nbytes for x in (out, *torch.autograd.grad(out, inputs, gradient)))
        return max(0, _largest() - before - kept)

    run(64)  # libraries, and the threads of the backward pass
    print(run(options.tokens))


def _implementation(name: str, tokens: int) -> Callable:
    import attention_peers
    import contextual_peers
    import posenc

    if name == "SDPA":
        return attention_peers.sdpa
    if name == "CoPE":
        return lambda q, k, v, pos_emb: (posenc.ops.cope_attention(q, k, v, pos_emb),)
    if name == "CoPE eager":
        return contextual_peers.cope_eager(tokens)
    return lambda q, k, v: (posenc.ops.attention(q, k, v, is_causal=True),)


def _largest() -> int:
    """Bytes of the largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
