"""This machine's own bounds, to compare every figure with: memory read bandwidth and matrix products on CPU.

    python bench/bounds.py

A step that decodes for one request reads every weight once: bytes of the weights / bandwidth is its least time.
"""

import statistics
import time
from collections.abc import Callable

import torch

from kvasir.config.hardware.machine import cgroup_cores, cpu_name


def fastest(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    # Best and median, in seconds.
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times), statistics.median(times)


def main() -> None:
    torch.set_num_threads(cgroup_cores())
    print(f"{cpu_name()}, {cgroup_cores()} cores, torch {torch.__version__}")
    memory = torch.ones(2**28)  # 1 GiB, far beyond every cache
    best, median = fastest(memory.sum, 8)
    size = memory.numel() * memory.element_size()
    print(f"memory read       {size / best / 1e9:6.1f} GB/s   (median {size / median / 1e9:.1f})")
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.randn(1024, 1024).to(dtype)
        best, median = fastest(lambda a=a: a @ a, 20)  # type: ignore[misc]
        name = str(dtype).removeprefix("torch.")
        print(
            f"matmul {name:<10} {2 * 1024**3 / best / 1e12:6.2f} TFLOP/s (median {2 * 1024**3 / median / 1e12:.2f})"
        )


if __name__ == "__main__":
    main()
