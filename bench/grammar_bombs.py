"""Grammars that are meant to harm a service: does it answer each at once, and do the streams next to them go on?

    python -m bench.grammar_bombs
    python -m bench.grammar_bombs --rounds 3 --only minItems,pattern

Starts a service. Streams run all the time: first alone, then while one bomb of bombs.py after another is sent, each
when the one before was answered. A table has the status, the time until the answer, the memory of engine and
frontend with the processes below them after each, and the first words of the answer. Then 99th percentiles of the
time between tokens, with and without bombs.

Exit code 1 if an answer took more than --most-seconds or was an error of the server, if the memory grew by more
than --most-mib, if a stream failed, if the times between tokens grew by more than --most-ratio, or if a usual
schema is not answered at the end.
"""

import argparse
import asyncio
import json
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from bench.bombs import bombs  # noqa: E402
from bench.schemas import response_format  # noqa: E402

from kvasir.benchmark.process_memory import memory_of_tree  # noqa: E402
from kvasir.benchmark.timed_request import send  # noqa: E402
from kvasir.benchmark.workload import RequestPlan  # noqa: E402
from kvasir.config.machine import cgroup_cores, cpu_name  # noqa: E402
from service.running import Service, running  # noqa: E402

# For the answer to a bomb.
GIVE_UP_SECONDS: Final = 60.0
MIB: Final = 2**20
# So small that the streams use all of it before the first bomb: its memory is resident then.
CACHE_OPTION: Final = ("--kv-cache-memory-bytes", "16Mi")


@dataclass
class Streams:
    """So many requests at once, all the time."""

    session: aiohttp.ClientSession
    url: str
    # Seconds between tokens.
    gaps: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            body = {"prompt": f"{number} pods", "max_tokens": 100, "temperature": 1.0, "seed": number}
            body |= {"stream": True, "ignore_eos": True}
            outcome = await send(self.session, self.url, RequestPlan("/v1/completions", body))
            self.gaps += outcome.gaps
            if outcome.error:
                self.errors.append(outcome.error)
                await asyncio.sleep(0.5)

    def p99(self) -> float:
        """Return the 99th percentile in milliseconds, and begin again."""
        ordered, self.gaps = sorted(self.gaps), []
        return 1000 * ordered[int(0.99 * len(ordered))] if ordered else float("inf")


@dataclass(frozen=True)
class Answer:
    status: int
    seconds: float
    text: str


async def ask(session: aiohttp.ClientSession, url: str, fields: dict[str, Any]) -> Answer:
    # Status 0: no answer.
    content = await asyncio.to_thread(encoded, fields)  # 10 MB would hold back the streams' client
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/v1/chat/completions", data=content, headers=headers) as response:
                status, text = response.status, await response.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        status, text = 0, f"{type(error).__name__}: {error}"
    return Answer(status, time.perf_counter() - begun, text)


def encoded(fields: dict[str, Any]) -> bytes:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        body = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 4, **fields}
        return json.dumps(body).encode()
    finally:
        sys.setrecursionlimit(limit)


def resident(service: Service) -> dict[str, float]:
    # MiB of each part with the processes below it.
    return {part.name: sum(each.resident for each in memory_of_tree(part.pid)) / MIB for part in service.parts()}


async def measure(service: Service, args: argparse.Namespace) -> list[str]:
    """Return the bounds that were broken."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        streams = Streams(session, service.url)
        usual = {"response_format": response_format("usual")}
        await ask(session, service.url, usual)  # loads the compiler
        async with asyncio.TaskGroup() as group:
            running_streams = [group.create_task(streams.run()) for _ in range(args.streams)]
            await asyncio.sleep(args.quiet_seconds)
            streams.p99()  # of the start
            await asyncio.sleep(args.quiet_seconds)
            quiet, before = streams.p99(), resident(service)
            print(row("", "status", "seconds", *before, "answer"))
            print(row("before", "", "", *(f"{size:.0f}" for size in before.values()), ""))
            broken = await send_bombs(session, service, args)
            beside = streams.p99()
            after = resident(service)
            last = await ask(session, service.url, usual)
            for task in running_streams:
                task.cancel()
    print(f"time between tokens of {args.streams} streams, p99: {quiet:.1f} ms, next to bombs {beside:.1f} ms")
    broken += [f"a stream failed: {error}" for error in streams.errors[:3]]
    if beside > args.most_ratio * quiet:
        broken.append(f"the time between tokens was {beside / quiet:.2f} times as long")
    if after.keys() != before.keys():
        broken.append(f"the parts are {', '.join(after)} instead of {', '.join(before)}")
    broken += [
        f"{name} grew by {after[name] - size:.0f} MiB"
        for name, size in before.items()
        if after.get(name, 0) - size > args.most_mib
    ]
    if last.status != 200:
        broken.append(f"a usual schema is answered with {last.status}: {last.text[:200]}")
    return broken


async def send_bombs(session: aiohttp.ClientSession, service: Service, args: argparse.Namespace) -> list[str]:
    broken, longest = [], 0.0
    for _ in range(args.rounds):
        for name, fields in bombs(f"x{secrets.token_hex(4)}"):
            if args.only and not any(part in name for part in args.only):
                continue
            answer = await ask(session, service.url, fields)
            longest = max(longest, answer.seconds)
            sizes = [f"{size:.0f}" for size in resident(service).values()]
            print(row(name, str(answer.status), f"{answer.seconds:.2f}", *sizes, words(answer)), flush=True)
            if answer.seconds > args.most_seconds:
                broken.append(f"{name}: answered after {answer.seconds:.2f} s")
            if not 200 <= answer.status < 500:
                broken.append(f"{name}: status {answer.status}: {answer.text[:200]}")
            await asyncio.sleep(args.pause)
    print(f"the longest answer took {longest:.2f} s")
    return broken


def row(name: str, *cells: str) -> str:
    *numbers, text = cells
    return f"{name:<36}" + "".join(f"{cell:>11}" for cell in numbers) + f"  {text}"


def words(answer: Answer) -> str:
    try:
        return str(json.loads(answer.text)["error"]["message"])[:110]
    except (ValueError, LookupError, TypeError):
        return "" if answer.status == 200 else answer.text[:110]


def names(text: str) -> Sequence[str]:
    return text.split(",")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo://")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--quiet-seconds", type=float, default=15.0, help="without bombs, after as many to warm up")
    parser.add_argument("--rounds", type=int, default=2, help="of all bombs, with other names each time")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between an answer and the next bomb")
    parser.add_argument(
        "--only", type=names, default=(), metavar="NAME,…", help="bombs with one of these in the name"
    )
    parser.add_argument("--most-seconds", type=float, default=2.0)
    parser.add_argument("--most-mib", type=float, default=64.0)
    parser.add_argument("--most-ratio", type=float, default=2.0)
    parser.add_argument("--option", action="append", default=[], help="of kvasir serve; = before its value")
    args = parser.parse_args()
    print(f"{cpu_name()}, {cgroup_cores()} cores; {args.model}")
    with running("serve", args.model, "--port", "0", "--device", "cpu", *CACHE_OPTION, *args.option) as service:
        broken = asyncio.run(measure(service, args))
    print("\n".join(f"broken: {each}" for each in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
