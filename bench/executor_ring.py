"""Time of a step between an engine and its worker processes, without a model.

    python -m bench.executor_ring
    python -m bench.executor_ring --workers 1,2 --rows 1,64,256 --compute-ms 0,2 --rounds 5

The engine encodes a StepInput and sends it to all workers through shared memory. Each worker decodes it; rank 0
replies with a StepOutput, the others with their status. The engine waits for all replies and decodes the output.
With --compute-ms each worker is busy for so long before it replies. That time is subtracted.

Rounds alternate between the numbers of workers. The last lines are the medians over all steps of all rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from kvasir.config.machine import cpu_name
from kvasir.executor.shared_memory.channel import EngineChannel, WorkerChannel, WorkerHandle
from kvasir.executor.shared_memory.ring import PeerLostError
from kvasir.worker.step import ScheduledRow, StepInput, StepOutput

TIMEOUT_SECONDS: Final = 60.0
LEAD_STEPS: Final = 50
"""At the beginning of a round, not counted."""
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
            new_block_ids=[5000 + row] if row % 16 == 0 else [],
        )
        for row in range(rows)
    ]
    return StepInput(finished=[], new=[], scheduled=scheduled)


def work(text: str, compute_seconds: float) -> None:
    """Be a worker until the engine ends."""
    channel = WorkerChannel(WorkerHandle.from_text(text))
    step = 0
    try:
        while True:
            frame = channel.requests.read()
            step += 1
            channel.progress.enter(step, 1)
            batch = INPUT.decode(frame)
            end = time.perf_counter() + compute_seconds
            while compute_seconds and time.perf_counter() < end:
                pass
            tokens = [30_000] * len(batch.scheduled)
            channel.replies.succeed(b"" if channel.rank else ENCODER.encode(StepOutput(tokens)))
            channel.progress.enter(step, 0)
    except PeerLostError:
        return


@contextmanager
def started(workers: int, compute_seconds: float) -> Iterator[EngineChannel]:
    channel = EngineChannel(workers)
    processes = []
    for rank in range(workers):
        handle = channel.handle(rank)
        command = [sys.executable, "-m", "bench.executor_ring", "--work", handle.to_text()]
        command += ["--compute-ms", str(compute_seconds * 1000)]
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
        """Run steps, the first LEAD_STEPS of them without a record."""
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
    """Return the median time of a call in microseconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * MICROSECONDS


def print_codec(rows: int) -> None:
    batch = decode_step(rows)
    output = StepOutput([30_000] * rows)
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
    parser.add_argument("--steps", type=int, default=2000, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    compute = [float(number) / 1000 for number in arguments.compute_ms.split(",")]
    if arguments.work:
        work(arguments.work, compute[0])
        return
    print(f"{cpu_name()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    for rows in arguments.rows:
        print_codec(rows)
    measure(arguments.workers, arguments.rows, compute, arguments.steps, arguments.rounds)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def measure(workers: Sequence[int], rows: Sequence[int], compute: Sequence[float], steps: int, rounds: int) -> None:
    cells: dict[tuple[int, int, float], Times] = defaultdict(Times)
    for _ in range(rounds):
        for number in workers:
            for seconds in compute:
                with started(number, seconds) as channel:
                    for size in rows:
                        cells[number, size, seconds].run(channel, decode_step(size), steps, seconds)
    print("\n| workers | rows | compute, ms | step, µs | p99, µs | encode | write | wait | decode |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (number, size, seconds), times in sorted(cells.items()):
        print(f"| {number} | {size} | {seconds * 1000:g} | {' | '.join(times.row())} |")


if __name__ == "__main__":
    main()
