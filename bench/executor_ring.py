"""Time of a step between an engine and its worker processes, without a model.

    python -m bench.executor_ring
    python -m bench.executor_ring --workers 1,2 --rows 1,64,256 --compute-ms 0,2 --rounds 5

The engine encodes a StepInput and sends it to all workers through shared memory. Each worker decodes it; rank 0
replies with a StepOutput, the others with an empty body. The engine waits for all replies and decodes the output.
With --compute-ms each worker is busy for so long before it replies. That time is subtracted. With --spin-us a
worker polls for so long before it sleeps, which the real workers do not do.

Rounds alternate between the numbers of workers. The last lines are the medians over all steps of all rounds.
"""

import argparse
import os
import select
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Final

import msgspec

from kvasir.config.machine import cpu_name
from kvasir.executor.shared_memory.channel import EngineChannel, WorkerChannel, WorkerHandle
from kvasir.executor.shared_memory.ring import PeerLostError
from kvasir.worker.step import ScheduledRow, StepInput, StepOutput

TIMEOUT_SECONDS: Final = 60.0
# At the beginning of a round, not counted.
LEAD_STEPS: Final = 50
MICROSECONDS: Final = 1e6

ENCODER: Final = msgspec.msgpack.Encoder()
INPUT: Final = msgspec.msgpack.Decoder(StepInput)
OUTPUT: Final = msgspec.msgpack.Decoder(StepOutput)


def decode_step(rows: int) -> StepInput:
    """Return a step in which every row decodes one token, and one of 16 rows gets a new block."""
    scheduled = [
        ScheduledRow(
            request_id=f"cmpl-{row:032x}-0",
            num_computed_tokens=1000 + row,
            num_new_tokens=1,
            new_block_ids=[[5000 + row]] if row % 16 == 0 else [],
        )
        for row in range(rows)
    ]
    return StepInput(finished=[], new=[], scheduled=scheduled)


def work(text: str, compute_seconds: float, spin_seconds: float) -> None:
    channel = WorkerChannel(WorkerHandle.from_text(text))
    poll = select.poll()
    poll.register(channel.requests, select.POLLIN)
    step = 0
    try:
        while True:
            end = time.perf_counter() + spin_seconds
            while spin_seconds and time.perf_counter() < end and not poll.poll(0):
                pass
            frame = channel.requests.read()
            step += 1
            channel.progress.enter(step, 1)
            batch = INPUT.decode(frame)
            end = time.perf_counter() + compute_seconds
            while compute_seconds and time.perf_counter() < end:
                pass
            tokens = [[30_000]] * len(batch.scheduled)
            channel.replies.write(b"" if channel.rank else ENCODER.encode(StepOutput(tokens)))
            channel.progress.enter(step, 0)
    except PeerLostError:
        return


@contextmanager
def started(workers: int, compute_seconds: float, spin_seconds: float) -> Iterator[EngineChannel]:
    channel = EngineChannel(workers)
    processes = []
    for rank in range(workers):
        handle = channel.handle(rank)
        command = [sys.executable, "-m", "bench.executor_ring", "--work", handle.to_text()]
        command += [f"--compute-ms={compute_seconds * 1e3}", f"--spin-us={spin_seconds * 1e6}"]
        processes.append(subprocess.Popen(command, pass_fds=handle.descriptors))
    channel.close_handles()
    try:
        yield channel
    finally:
        channel.close()
        for process in processes:
            process.wait()


class Times:
    """Seconds of each step, as a whole and by part."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.parts: dict[str, list[float]] = defaultdict(list)

    def run(self, channel: EngineChannel, batch: StepInput, steps: int, compute_seconds: float) -> None:
        # The first LEAD_STEPS are not recorded.
        clock = time.perf_counter
        for number in range(LEAD_STEPS + steps):
            began = clock()
            frame = ENCODER.encode(batch)
            encoded = clock()
            channel.requests.write(frame, TIMEOUT_SECONDS)
            written = clock()
            replies = channel.replies.read(TIMEOUT_SECONDS)
            received = clock()
            output = OUTPUT.decode(replies[0])
            decoded = clock()
            assert len(output.token_ids) == len(batch.scheduled)
            if number >= LEAD_STEPS:
                self.steps.append(decoded - began - compute_seconds)
                self.parts["encode"].append(encoded - began)
                self.parts["write"].append(written - encoded)
                self.parts["wait"].append(received - written - compute_seconds)
                self.parts["decode"].append(decoded - received)

    def row(self) -> list[str]:
        median, p99 = statistics.median(self.steps), statistics.quantiles(self.steps, n=100)[98]
        parts = [statistics.median(values) for values in self.parts.values()]
        return [f"{seconds * MICROSECONDS:.0f}" for seconds in (median, p99, *parts)]


def alone(call: Callable[[], object], count: int = 2000) -> float:
    # Median microseconds.
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * MICROSECONDS


def print_codec(rows: int) -> None:
    batch = decode_step(rows)
    output = StepOutput([[30_000]] * rows)
    batch_frame, output_frame = ENCODER.encode(batch), ENCODER.encode(output)
    print(
        f"{rows} rows: StepInput {len(batch_frame)} bytes, encode {alone(lambda: ENCODER.encode(batch)):.1f} µs, "
        f"decode {alone(lambda: INPUT.decode(batch_frame)):.1f} µs; StepOutput {len(output_frame)} bytes, "
        f"encode {alone(lambda: ENCODER.encode(output)):.1f} µs, "
        f"decode {alone(lambda: OUTPUT.decode(output_frame)):.1f} µs"
    )


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4])
    parser.add_argument("--rows", type=numbers, default=[64])
    parser.add_argument("--compute-ms", default="0", help="comma-separated")
    parser.add_argument("--spin-us", default="0", help="comma-separated")
    parser.add_argument("--steps", type=int, default=2000, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    compute = [float(number) / 1e3 for number in arguments.compute_ms.split(",")]
    spin = [float(number) / 1e6 for number in arguments.spin_us.split(",")]
    if arguments.work:
        work(arguments.work, compute[0], spin[0])
        return
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    for rows in arguments.rows:
        print_codec(rows)
    cells: dict[tuple[int, float, float, int], Times] = defaultdict(Times)
    for _ in range(arguments.rounds):
        for way in product(arguments.workers, compute, spin):
            with started(*way) as channel:
                for rows in arguments.rows:
                    cells[*way, rows].run(channel, decode_step(rows), arguments.steps, way[1])
    print("\n| workers | rows | compute, ms | spin, µs | step, µs | p99, µs | encode | write | wait | decode |")
    print("|" + "---|" * 10)
    for (workers, compute_seconds, spin_seconds, rows), times in sorted(cells.items()):
        row = [workers, rows, f"{compute_seconds * 1e3:g}", f"{spin_seconds * 1e6:g}", *times.row()]
        print(f"| {' | '.join(map(str, row))} |")
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
