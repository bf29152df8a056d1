"""CPU use of an engine and its worker processes while the service is idle, by thread.

    python bench/idle_cpu.py
    python bench/idle_cpu.py --seconds 60 --workers 2

Starts `kvasir serve` with the demo model and dummy weights, split over the workers. It answers one request, and
then nothing happens for --seconds. The kernel counts the time of each thread in nanoseconds
(/proc/PID/task/TID/schedstat), those of torch's libraries too. The table has the threads that ran; "wake-ups"
is how often a thread gave up its core to wait. Exit code 1 if a process used more than --limit percent of a
core.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from kvasir.config.machine import cpu_name

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from runtime.executor.processes import children_of  # noqa: E402
from service.running import running  # noqa: E402

# After the request: the engine allocates memory in advance, in small pieces.
SETTLE_SECONDS: Final = 5.0
NANOSECONDS: Final = 1e9


@dataclass(frozen=True)
class Use:
    name: str
    seconds: float
    wake_ups: int


def use_of(pid: int) -> dict[int, Use]:
    """Return the CPU time of each thread of a process so far."""
    threads = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended
            status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
            seconds = int((task / "schedstat").read_text().split()[0]) / NANOSECONDS
            wake_ups = int(status["voluntary_ctxt_switches"])
            threads[int(task.name)] = Use((task / "comm").read_text().strip(), seconds, wake_ups)
    return threads


def difference(before: Mapping[int, Use], after: Mapping[int, Use]) -> list[Use]:
    """Return what each thread has used in between, the largest first."""
    nothing = Use("", 0.0, 0)
    uses = []
    for thread, use in after.items():
        earlier = before.get(thread, nothing)
        uses.append(Use(use.name, use.seconds - earlier.seconds, use.wake_ups - earlier.wake_ups))
    return sorted(uses, key=lambda use: -use.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=4, help="the demo model has four heads")
    parser.add_argument("--limit", type=float, default=0.1, help="percent of a core, for each process")
    arguments = parser.parse_args()
    options = ["--tensor-parallel-size", str(arguments.workers), "--load-format", "dummy", "--device", "cpu"]
    with running("serve", "demo://", *options, "--kv-cache-memory-bytes", "64Mi", "--port", "0") as service:
        body = {"prompt": "What is an engine?", "max_tokens": 8, "ignore_eos": True}
        httpx.post(f"{service.url}/v1/completions", json=body, timeout=60).raise_for_status()
        [engine] = service.engines()
        names = {engine.pid: "engine"} | {pid: f"worker {rank}" for rank, pid in enumerate(children_of(engine.pid))}
        time.sleep(SETTLE_SECONDS)
        before = {pid: use_of(pid) for pid in names}
        time.sleep(arguments.seconds)
        uses = {name: difference(before[pid], use_of(pid)) for pid, name in names.items()}
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}\n")
    print("| process | thread | CPU, % of a core | wake-ups/s |\n|---|---|---|---|")
    exceeded = False
    for name, threads in uses.items():
        share = 100 * sum(use.seconds for use in threads) / arguments.seconds
        exceeded |= share > arguments.limit
        total = sum(use.wake_ups for use in threads) / arguments.seconds
        print(f"| {name} | all {len(threads)} | {share:.3f} | {total:.2f} |")
        for use in threads:
            if use.seconds or use.wake_ups:
                rate = use.wake_ups / arguments.seconds
                print(f"| | {use.name} | {100 * use.seconds / arguments.seconds:.3f} | {rate:.2f} |")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
