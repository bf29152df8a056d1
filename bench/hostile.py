"""A service under attack: do honest streams go on, and does the frontend's memory stay bounded?

    python -m bench.hostile --seconds 600 --connections 5000

Starts a service of the demo model on loopback, and in a process of its own the clients of attacks.py. Meanwhile
honest clients send streamed chats, one after another. Prints the failures of honest streams, the longest waits of
one, the frontend's largest resident memory and its most connections. Exit code 1 if a stream failed, one waited for
more than --patience, or the memory exceeded --max-mib. Ctrl-C and SIGTERM end everything that it started.

The attackers run at nice 19 on the same machine. The output has the time that the frontend's main thread waited for
a core while other processes had them all: what an honest stream waited is partly that.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import urlsplit

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from bench.attacks import KINDS  # noqa: E402

from service.running import Service, running  # noqa: E402

CHAT: Final = json.dumps(
    {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 32, "stream": True}
).encode()
REQUEST: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(CHAT), CHAT)
)
# For one piece of a stream: a longer wait is a failure.
GIVE_UP_SECONDS: Final = 60.0
MIB: Final = 2**20


@dataclass
class Outcome:
    complete: int = 0
    failures: list[str] = field(default_factory=list)
    # The longest in seconds: for the connection, the head of the answer, and between two pieces.
    waits: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("connect", "head", "piece"), 0.0))

    def waited(self, what: str, since: float) -> float:
        """Record a wait that has just ended, and return the time."""
        now = time.monotonic()
        self.waits[what] = max(self.waits[what], now - since)
        return now

    @property
    def longest(self) -> float:
        return max(self.waits.values())

    def __str__(self) -> str:
        waits = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in self.waits.items())
        return f"{self.complete} streams, {len(self.failures)} failed, the longest waits: {waits}"


async def honest(url: str, outcome: Outcome, end: float) -> None:
    """Send one stream after another, each over a new connection."""
    while time.monotonic() < end:
        try:
            await _stream(url, outcome)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            outcome.failures.append(f"{type(error).__name__}: {error}")


async def _stream(url: str, outcome: Outcome) -> None:
    parts = urlsplit(url)
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    last = outcome.waited("connect", begun)
    try:
        writer.write(REQUEST)
        received = b""
        while True:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                piece = await reader.read(65536)
            last = outcome.waited("piece" if received else "head", last)
            if not piece:
                break
            received += piece
    finally:
        writer.close()
    if received.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in received:
        outcome.complete += 1
    else:
        outcome.failures.append(f"an answer without its end: {received[-300:]!r}")


class Watched:
    """The frontend's process, which is sampled every second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._files = self._count_files()
        self._ran, self._waited = self._schedule()
        self.most_connections = 0

    def peak_mib(self) -> float:
        """Return the most resident memory that the process has had."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    async def sample(self) -> None:
        while True:
            self.most_connections = max(self.most_connections, self._count_files() - self._files)
            await asyncio.sleep(1)

    def __str__(self) -> str:
        ran, waited = self._schedule()
        return (
            f"the frontend: at most {self.peak_mib():.0f} MiB, {self.most_connections} connections; its main "
            f"thread ran for {ran - self._ran:.1f} s and waited for a core for {waited - self._waited:.1f} s"
        )

    def _count_files(self) -> int:
        return len(os.listdir(f"/proc/{self._pid}/fd"))

    def _schedule(self) -> tuple[float, float]:
        ran, waited, _ = Path(f"/proc/{self._pid}/schedstat").read_text().split()
        return int(ran) / 1e9, int(waited) / 1e9


@contextmanager
def attack(url: str, connections: int, kinds: Collection[str]) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "bench.attacks", url, "--connections", str(connections)]
    command += ["--until-stdin-ends", "--kinds", *kinds]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _streams(url: str, count: int, seconds: float, frontend: Watched) -> Outcome:
    outcome, end = Outcome(), time.monotonic() + seconds
    sampling = asyncio.create_task(frontend.sample())
    await asyncio.gather(*(honest(url, outcome, end) for _ in range(count)))
    sampling.cancel()
    return outcome


def run(service: Service, args: argparse.Namespace) -> bool:
    """Attack the service; return whether it stood."""
    (pid,) = (part.pid for part in service.parts() if part.name == "frontend")
    frontend = Watched(pid)
    before = asyncio.run(_streams(service.url, args.streams, args.quiet_seconds, frontend))
    print(f"before: {before}\n{frontend}", flush=True)
    frontend = Watched(pid)
    with attack(service.url, args.connections, args.kinds) as attacker:
        outcome = asyncio.run(_streams(service.url, args.streams, args.seconds, frontend))
        ended = attacker.poll()
        print(f"under attack by {args.connections} connections for {args.seconds:g} s: {outcome}\n{frontend}")
    print("\n".join(outcome.failures[:20]), end="\n" if outcome.failures else "")
    if ended is not None:
        print(f"the attack itself ended with {ended}")
    well = not outcome.failures and outcome.complete > 0 and ended is None
    return well and outcome.longest <= args.patience and frontend.peak_mib() <= args.max_mib


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--quiet-seconds", type=float, default=5.0, help="of honest streams before the attack")
    parser.add_argument("--connections", type=int, default=5000, metavar="N")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--streams", type=int, default=16, metavar="N", help="honest ones at a time")
    parser.add_argument("--patience", type=float, default=1.0, metavar="SECONDS", help="the longest wait allowed")
    parser.add_argument("--max-mib", type=float, default=500.0, metavar="MIB", help="of the frontend's memory")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminate)
    with running("serve", "demo://", "--port", "0") as service:
        try:
            return 0 if run(service, args) else 1
        except (SystemExit, KeyboardInterrupt) as error:  # here, so that the service is stopped and not killed
            return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1


if __name__ == "__main__":
    sys.exit(main())
