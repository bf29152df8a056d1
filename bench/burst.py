"""Measure how long a burst of new prompts interrupts a stream that an engine is generating.

    python bench/make_llama.py /tmp/llama-1m --hidden 128 --layers 2 --heads 4 --mlp 256 --vocab 4096 \\
        --context 16384
    python bench/burst.py /tmp/llama-1m --requests 4096 --tokens 8192

One frontend has a stream, and a second one sends all prompts at once; both use the link's protocol over ipc. With
one row (the default here) the burst waits until the stream ends, so each gap in the stream is the cost of accepting
requests. With more rows, the gaps include the steps that compute the prompts.
"""

import argparse
import contextlib
import multiprocessing
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.synchronize import Event
from pathlib import Path

import zmq

from kvasir.benchmark.process_memory import memory_of_tree
from kvasir.link.codec import CODEC, UnknownMessage, encode
from kvasir.link.protocol import (
    PROTOCOL_VERSION,
    Abort,
    AddRequest,
    FromEngine,
    FromFrontend,
    Heartbeat,
    Hello,
    Outputs,
    Ready,
    Welcome,
)
from kvasir.request.hashing import chain_root, packed_chain
from kvasir.request.params import SamplingParams
from kvasir.request.tokens import to_wire, token_array

VOCABULARY = 4096
QUIET_SECONDS = 3.0
"""How long the stream is measured without arrivals, before the burst and after it."""


class BareFrontend:
    """The frontend's end of the link, without a frontend."""

    def __init__(self, address: str, name: str) -> None:
        self.name = name
        self.ready: Ready | None = None
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self._engine = b""
        self._beat_due = 0.0

    def send(self, frame: bytes) -> None:
        self._socket.send_multipart([self._engine, frame])

    def send_message(self, message: FromFrontend) -> None:
        self.send(encode(message))

    def receive(self, seconds: float) -> FromEngine | UnknownMessage | None:
        """Return the next message, or None after this time; answer what the engine expects an answer to."""
        if self._engine and time.monotonic() >= self._beat_due:
            self._beat_due = time.monotonic() + 1
            self.send_message(Heartbeat())
        if not self._socket.poll(int(seconds * 1000)):
            return None
        self._engine, frame = self._socket.recv_multipart()
        message = CODEC.decode_from_engine(frame)
        if isinstance(message, Hello):
            self.send_message(Welcome(PROTOCOL_VERSION, self.name))
        elif isinstance(message, Ready):
            self.ready = message
        return message

    def wait_ready(self, seconds: float = 120.0) -> Ready:
        end = time.monotonic() + seconds
        while self.ready is None and time.monotonic() < end:
            self.receive(0.1)
        if self.ready is None:
            raise SystemExit("the engine did not become ready")
        return self.ready


def request_frame(request_id: str, tokens: int, max_tokens: int, block_size: int | None) -> bytes:
    rng = random.Random(request_id)
    prompt = token_array(rng.choices(range(VOCABULARY), k=tokens))
    params = SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True)
    hashes = packed_chain(chain_root(), prompt, block_size) if block_size else b""
    return encode(AddRequest(request_id, 1, to_wire(prompt), b"", params, hashes))


def send_burst(address: str, requests: int, tokens: int, made: Event, go: Event, sent: Event, end: Event) -> None:
    """Run the second frontend, in a process of its own."""
    frontend = BareFrontend(address, "frontend-burst")
    block_size = frontend.wait_ready().block_size
    frames = []
    for number in range(requests):
        frames.append(request_frame(f"burst-{number}", tokens, 4, block_size))
        frontend.receive(0)
    made.set()
    while not go.is_set():
        frontend.receive(0.01)
    refused = 0
    for frame in frames:
        frontend.send(frame)
    sent.set()
    while not end.is_set():
        message = frontend.receive(0.1)
        if isinstance(message, Outputs):
            refused += sum(bool(output.error) for output in message.outputs)
    frontend.send_message(Abort([f"burst-{number}" for number in range(requests)]))
    time.sleep(0.5)
    print(f"refused         {refused} of {requests}")


@contextlib.contextmanager
def engine(model: str, links: list[str], options: list[str]) -> Iterator[int]:
    """Start an engine, and yield the id of its process."""
    command = [
        sys.executable,
        "-m",
        "kvasir.cli.main",
        "engine",
        model,
        "--link",
        *links,
        "--ops-port",
        "0",
        *options,
    ]
    process = subprocess.Popen(command)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


class Stream:
    """The times at which one request's tokens reach the first frontend."""

    def __init__(self, frontend: BareFrontend) -> None:
        self._frontend = frontend
        self.times: list[float] = []
        self.beats: list[float] = []
        self.waiting = 0

    def follow(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = self._frontend.receive(min(left, 0.1))
            if isinstance(message, Outputs):
                self.times.append(time.monotonic())
                self.waiting = message.stats.waiting
            elif isinstance(message, Heartbeat):
                self.beats.append(time.monotonic())

    def gaps(self, begin: float, end: float) -> list[float]:
        """Return the seconds between the tokens within these times, and the gaps at both ends."""
        times = [begin, *(each for each in self.times if begin <= each <= end), end]
        return [after - before for before, after in pairwise(times)]


def milliseconds(name: str, gaps: list[float]) -> str:
    ordered = sorted(gaps)
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    return (
        f"{name:<15} median {1e3 * statistics.median(gaps):7.2f} ms  p99 {1e3 * p99:7.2f} ms  "
        f"longest {1e3 * ordered[-1]:8.2f} ms  ({len(gaps)} steps)"
    )


def resident(pid: int) -> int:
    return sum(process.resident for process in memory_of_tree(pid))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("options", nargs="*", help="further options of the engine, behind --")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    made, go, sent, end = (context.Event() for _ in range(4))
    with tempfile.TemporaryDirectory() as folder:
        links = [f"ipc://{Path(folder) / name}" for name in ("stream", "burst")]
        options = ["--max-num-seqs", str(args.rows), "--threads", "1", *args.options]
        first = BareFrontend(links[0], "frontend-stream")
        burst = context.Process(
            target=send_burst, args=(links[1], args.requests, args.tokens, made, go, sent, end), daemon=True
        )
        burst.start()
        with engine(args.model, links, options) as pid:
            first.wait_ready()
            while not made.wait(0.01):
                first.receive(0.05)
            measure(first, pid, args.requests, go, sent)
            end.set()
            burst.join(60)
            first.send_message(Abort(["stream"]))
            time.sleep(0.5)


def measure(first: BareFrontend, pid: int, requests: int, go: Event, sent: Event) -> None:
    stream = Stream(first)
    first.send(request_frame("stream", 16, 8000, None))
    stream.follow(QUIET_SECONDS)
    before = resident(pid)
    began = time.monotonic()
    quiet = stream.gaps(stream.times[0], began)
    go.set()
    while stream.waiting < requests and time.monotonic() - began < 60:
        stream.follow(0.05)
        if sent.is_set() and stream.waiting and time.monotonic() - stream.times[-1] > 30:
            break
    taken = time.monotonic()
    stream.follow(QUIET_SECONDS)
    after = resident(pid)
    stream.follow(0.5)
    print(milliseconds("before", quiet))
    print(milliseconds("burst", stream.gaps(began, taken)))
    print(milliseconds("after", stream.gaps(taken, taken + QUIET_SECONDS)))
    beats = [later - earlier for earlier, later in pairwise(stream.beats)]
    print(f"heartbeats      longest gap {max(beats):.2f} s")
    print(f"accepted        {stream.waiting} waiting requests in {taken - began:.2f} s")
    print(f"memory          {(after - before) / 1e6:.0f} MB more than before")


if __name__ == "__main__":
    main()
