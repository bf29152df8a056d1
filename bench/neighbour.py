"""Decode rate of an engine on a quiet machine and next to busy processes, for several ways to use the cores.

    python -m bench.neighbour                                          # a Llama of 126 M parameters
    python -m bench.neighbour --busy 0,1,2 --rounds 5 --candidates default,fixed,one

Each candidate is an engine without HTTP in a process of its own. All of them stay loaded, and one at a time
computes, in alternating order. A cell begins when the machine is quiet. It is measured again when processes outside
the measurement used more than --foreign of a core. The last lines are the medians: tokens per second of one stream.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir.config.machine import cgroup_cores

HERE: Final = Path(__file__).parent
CORES: Final = cgroup_cores()
# The kernel spreads the busy processes, and the last engine's threads go to sleep.
SETTLE_SECONDS: Final = 0.3
# Per request; short, so that the slowest candidate ends in time.
DECODES: Final = 16
# Before a cell, not counted: an engine may adapt here.
LEAD_SECONDS: Final = 0.6
# The value of --threads and the OpenMP variables.
CANDIDATES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "default": ("auto", {}),
    "fixed": (str(CORES), {}),
    **{f"spin-{count}": (str(CORES), {"GOMP_SPINCOUNT": str(count)}) for count in (100, 1000, 10000, 100000)},
    "passive": (str(CORES), {"OMP_WAIT_POLICY": "passive"}),
    "half": (str(max(1, CORES // 2)), {}),
    "one": ("1", {}),
}


@dataclass(frozen=True)
class Cell:
    # Decodes per second.
    rate: float
    # Cores that processes outside the measurement used.
    foreign: float

    def __str__(self) -> str:
        return f"{self.rate:.1f} tok/s, {self.foreign:.2f} cores used by others"


class Candidate:
    """An engine process that computes on request."""

    def __init__(self, name: str, model: Path) -> None:
        threads, variables = CANDIDATES[name]
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.neighbour", "--engine", threads, "--model", str(model)],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def rate(self, seconds: float) -> float:
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the engine {self.name} ended with exit code {self.process.wait()}")
        return line

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> int:
    args = arguments()
    if args.engine:
        return serve(args.model, args.engine)
    with contextlib.ExitStack() as stack:
        model = args.model or make_model(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        candidates = []
        for name in args.candidates:
            candidates.append(Candidate(name, model))
            stack.callback(candidates[-1].close)
        cells: dict[tuple[str, int], list[Cell]] = defaultdict(list)
        for number in range(args.rounds):
            for busy in args.busy:
                for candidate in candidates if number % 2 == 0 else reversed(candidates):
                    cell = measure(candidate, busy, args)
                    print(f"round {number + 1}, {busy} busy, {candidate.name}: {cell}", flush=True)
                    cells[candidate.name, busy].append(cell)
    show(cells, args)
    return 0


def measure(candidate: Candidate, busy: int, args: argparse.Namespace) -> Cell:
    """Return the first cell with little foreign load, or the cell with the least after all attempts."""
    attempts = []
    for _ in range(args.attempts):
        wait_for_quiet(args)
        with neighbours(busy, args.duty) as pids:
            time.sleep(SETTLE_SECONDS)
            pids = [candidate.process.pid, *pids]
            before, began = busy_seconds() - seconds_of(pids), time.perf_counter()
            rate = candidate.rate(args.seconds)
            foreign = (busy_seconds() - seconds_of(pids) - before) / (time.perf_counter() - began)
        attempts.append(Cell(rate, foreign))
        if foreign <= args.foreign:
            break
    return min(attempts, key=lambda cell: cell.foreign)


def wait_for_quiet(args: argparse.Namespace) -> None:
    """Return when little computes on this machine, or after --patience seconds."""
    give_up = time.monotonic() + args.patience
    while time.monotonic() < give_up:
        before = busy_seconds()
        time.sleep(SETTLE_SECONDS)
        if busy_seconds() - before <= args.foreign * SETTLE_SECONDS:
            return


@contextlib.contextmanager
def neighbours(count: int, duty: float) -> Iterator[list[int]]:
    """Start processes that compute for a share `duty` of each tenth of a second."""
    code = f"""
import time
while True:
    end = time.monotonic() + {duty / 10}
    while time.monotonic() < end:
        pass
    time.sleep({(1 - duty) / 10})
"""
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def busy_seconds() -> float:
    # Of all processes of this machine.
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def seconds_of(pids: list[int]) -> float:
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


def show(cells: Mapping[tuple[str, int], list[Cell]], args: argparse.Namespace) -> None:
    """Print medians, with the range in brackets, without cells of too much foreign load."""
    print(f"\ntok/s of one stream, {CORES} cores, busy processes compute {args.duty:.0%} of the time\n")
    print("| | " + " | ".join("quiet" if busy == 0 else f"{busy} busy" for busy in args.busy) + " |")
    print("|---" * (len(args.busy) + 1) + "|")
    rejected = 0
    for name in args.candidates:
        row = []
        for busy in args.busy:
            rates = [cell.rate for cell in cells[name, busy] if cell.foreign <= args.foreign]
            rejected += len(cells[name, busy]) - len(rates)
            row.append(f"{statistics.median(rates):.1f} ({min(rates):.1f}–{max(rates):.1f})" if rates else "–")
        print(f"| {name} | " + " | ".join(row) + " |")
    print(f"\n{rejected} cells left out: other processes used more than {args.foreign} of a core")


def make_model(folder: Path) -> Path:
    subprocess.run([sys.executable, HERE / "make_llama.py", folder], check=True)
    return folder


def serve(model: Path, threads: str) -> int:
    """Read lines of seconds and write lines of rates, as a candidate's process."""
    from kvasir.benchmark.local_engine import start_engine
    from kvasir.benchmark.offline import random_requests
    from kvasir.benchmark.workload import OfflineWorkload
    from kvasir.config.settings import CacheConfig, DeviceConfig, EngineConfig, ModelConfig

    device = DeviceConfig(device="cpu", threads=None if threads == "auto" else int(threads))
    cache = CacheConfig(num_gpu_blocks_override=64)
    engine = start_engine(EngineConfig(ModelConfig(str(model)), device=device, cache=cache))
    requests = random_requests(engine, OfflineWorkload(input_len=16, output_len=DECODES + 1))
    engine.run([next(requests)], lambda ended, total: None)
    print("ready", flush=True)
    for line in sys.stdin:
        end = time.perf_counter() + LEAD_SECONDS
        while time.perf_counter() < end:
            engine.run([next(requests)], lambda ended, total: None)
        steps: list[float] = []
        end = time.perf_counter() + float(line)
        while time.perf_counter() < end:
            steps += engine.run([next(requests)], lambda ended, total: None).steps[1:]
        print(len(steps) / sum(steps), flush=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=lambda text: text.split(","), default=list(CANDIDATES))
    parser.add_argument("--busy", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1])
    parser.add_argument("--duty", type=float, default=1.0, help="share of the time that a busy process computes")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--foreign", type=float, default=0.15, help="cores that other processes may use")
    parser.add_argument("--attempts", type=int, default=3, help="to measure a cell with so little foreign load")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--model", type=Path, help="directory of a model [default: makes one]")
    parser.add_argument("--engine", metavar="THREADS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.candidates) - set(CANDIDATES):
        parser.error(f"unknown candidates {', '.join(sorted(unknown))}; choose from {', '.join(CANDIDATES)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
