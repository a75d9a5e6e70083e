"""Faults of other extensions with threads, fork and OpenMP."""

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

import posenc
import reference
from tolerances import assert_bits

ops = posenc.ops
Rotary = posenc.nn.Rotary


class TestThreads:
    def test_any_number_of_threads_gives_the_same_bits(self):
        q = torch.randn(2**20 // 64 // 8, 8, 64).unsqueeze(0).transpose(1, 2)
        expected = ops.rotary_qk(q, q[:, :2], None, reference.inverse_frequencies(64))
        for threads in (2, 4):
            torch.set_num_threads(threads)
            for y, e in zip(ops.rotary_qk(q, q[:, :2], None, reference.inverse_frequencies(64)), expected, strict=True):
                assert_bits(y, e)

    def test_four_python_threads_at_once_give_the_same_bits(self):
        inputs = [torch.randn(1, 8, 2048, 64) for _ in range(4)]
        module = Rotary(64)
        expected, results = [module(x) for x in inputs], [None] * 4

        def work(i):
            for _ in range(5):
                results[i] = module(inputs[i])

        workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for result, e in zip(results, expected, strict=True):
            assert_bits(result, e)

    def test_a_forked_worker_finishes(self):
        program = """
            import torch, posenc

            torch.set_num_threads(4)
            f, _ = posenc.scaling.frequencies(64)
            x = torch.ones(1, 16, 1024, 64)
            expected = posenc.ops.rotary(x, None, f)

            class Data(torch.utils.data.Dataset):
                def __len__(self): return 4
                def __getitem__(self, i):
                    return posenc.ops.rotary(x, None, f)

            loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork", timeout=20)
            for batch in loader:
                assert torch.equal(batch[0], expected)
            print("finished")
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "finished"

    def test_one_openmp_runtime_in_the_process(self):
        ops.rotary(torch.randn(1, 16, 1024, 64), None, reference.inverse_frequencies(64))
        mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
        runtimes = {
            path for path in mapped if any(name in Path(path).name for name in ("libgomp", "libiomp", "libomp"))
        }
        assert len(runtimes) == 1, runtimes

    @pytest.mark.parametrize("entry", ["op", "module", "cpp_twin"])
    def test_the_interpreter_runs_during_the_kernel(self, entry):
        x = torch.randn(1, 32, 4096, 128)
        module, twin = Rotary(128), posenc.nn.cpp.Rotary(128)
        call = {
            "op": lambda: ops.rotary(x, None, reference.inverse_frequencies(128)),
            "module": lambda: module(x),
            "cpp_twin": lambda: twin(x),
        }[entry]
        call()
        spans = []

        def work():
            for _ in range(4):
                start = time.perf_counter()
                call()
                spans.append((start, time.perf_counter()))

        worker = threading.Thread(target=work)
        worker.start()
        ticks = []
        while worker.is_alive():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)
        worker.join()
        inside = [sum(start < tick < end for tick in ticks) for start, end in spans]
        assert max(inside) >= 3, "no other Python thread ran while a kernel did"
