"""A service under attack: do honest streams go on, and does the frontend's memory stay bounded?

    python -m bench.hostile --seconds 600 --connections 5000

Starts a service of the demo model on loopback, and in a process of its own the clients of attacks.py. Meanwhile
honest clients send streamed chats, one after another. Prints the failures of honest streams, the longest wait for
a piece of one, and the frontend's largest resident memory. Exit code 1 if a stream failed, one waited for more than
--patience, or the memory exceeded --max-mib. Ctrl-C and SIGTERM end everything that it started.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final
from urllib.parse import urlsplit

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from service.running import Service, running  # noqa: E402

CHAT: Final = json.dumps(
    {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 32, "stream": True}
).encode()
REQUEST: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(CHAT), CHAT)
)
GIVE_UP_SECONDS: Final = 60.0
"""For one piece of a stream: a wait this long is a failure."""
MIB: Final = 2**20


@dataclass
class Outcome:
    """Of the honest streams."""

    complete: int = 0
    failures: list[str] = field(default_factory=list)
    longest: float = 0.0
    """Seconds from the request to the first piece of its answer, or between two pieces."""


async def honest(url: str, outcome: Outcome, end: float) -> None:
    """One stream after another, each over a new connection."""
    while time.monotonic() < end:
        try:
            await _stream(url, outcome)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            outcome.failures.append(f"{type(error).__name__}: {error}")


async def _stream(url: str, outcome: Outcome) -> None:
    parts = urlsplit(url)
    last = time.monotonic()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(REQUEST)
        received = b""
        while True:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                piece = await reader.read(65536)
            now = time.monotonic()
            outcome.longest, last = max(outcome.longest, now - last), now
            if not piece:
                break
            received += piece
    finally:
        writer.close()
    if received.startswith(b"HTTP/1.1 200 ") and b"data: [DONE]" in received:
        outcome.complete += 1
    else:
        outcome.failures.append(f"an answer without its end: {received[-300:]!r}")


def peak_mib(pid: int) -> float:
    """The most resident memory that the process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextmanager
def attack(url: str, connections: int) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-m", "bench.attacks", url, "--connections", str(connections)]
    process = subprocess.Popen([*command, "--until-stdin-ends"], cwd=ROOT, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _streams(url: str, count: int, seconds: float) -> Outcome:
    outcome, end = Outcome(), time.monotonic() + seconds
    await asyncio.gather(*(honest(url, outcome, end) for _ in range(count)))
    return outcome


def run(service: Service, args: argparse.Namespace) -> bool:
    """Attack the service; return whether it stood."""
    (frontend,) = (part for part in service.parts() if part.name == "frontend")
    before = asyncio.run(_streams(service.url, args.streams, args.quiet_seconds))
    mib = peak_mib(frontend.pid)
    print(f"before: {before.complete} streams, the longest wait {before.longest:.2f} s, {mib:.0f} MiB", flush=True)
    with attack(service.url, args.connections) as attacker:
        outcome = asyncio.run(_streams(service.url, args.streams, args.seconds))
        ended = attacker.poll()
    mib = peak_mib(frontend.pid)
    print(
        f"under attack by {args.connections} connections for {args.seconds:g} s: {outcome.complete} streams, "
        f"{len(outcome.failures)} failed, the longest wait {outcome.longest:.2f} s, at most {mib:.0f} MiB"
    )
    print("\n".join(outcome.failures[:20]), end="\n" if outcome.failures else "")
    if ended is not None:
        print(f"the attack itself ended with {ended}")
    well = not outcome.failures and outcome.complete > 0 and ended is None
    return well and outcome.longest <= args.patience and mib <= args.max_mib


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--quiet-seconds", type=float, default=5.0, help="of honest streams before the attack")
    parser.add_argument("--connections", type=int, default=5000, metavar="N")
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
