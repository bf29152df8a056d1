"""Many short requests against a service of this checkout: does its memory stay flat, and does it rest afterwards?

    python bench/soak.py --requests 200000

Starts `kvasir up` with the demo model and sends a mixture over many connections: plain completions and streamed
chats of a few tokens, clients that hang up in the middle, requests that are refused. It prints the resident memory
of each process as it goes. In the end no request may have failed that should not, memory may not have grown since
the warm-up (a tenth of the requests), nothing may be live, and no idle process may use a hundredth of a core. Exit
code 1 if any of this does not hold.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from service.running import Service, running  # noqa: E402

# Looks at the memory, spread over the run.
SAMPLES = 40
WARM_UP = 0.1
IDLE_SECONDS = 20.0
# Noise: the median of the last quarter against that of the first one after the warm-up.
GROWTH_MIB = 4.0
IDLE_CPU = 0.01
MESSAGES = [{"role": "user", "content": "Who are you?"}]


@dataclass
class Memory:
    """Resident MiB of each process by name, over the run."""

    samples: dict[str, list[float]] = field(default_factory=dict)

    def look(self, service: Service) -> None:
        for part in service.parts():
            self.samples.setdefault(part.name, []).append(resident_mib(part.pid))

    def growth(self) -> dict[str, float]:
        # In MiB since the warm-up.
        result = {}
        for name, samples in self.samples.items():
            warm = samples[max(1, int(len(samples) * WARM_UP)) :]
            quarter = max(1, len(warm) // 4)
            result[name] = statistics.median(warm[-quarter:]) - statistics.median(warm[:quarter])
        return result


async def plain(session: aiohttp.ClientSession, rng: random.Random) -> None:
    body = {"model": "demo", "prompt": prompt(rng), "max_tokens": rng.randint(1, 8), "ignore_eos": True}
    async with session.post("/v1/completions", json=body) as answer:
        expect(answer, 200)
        usage = (await answer.json())["usage"]
    if usage["completion_tokens"] != body["max_tokens"]:
        raise AssertionError(f"{body['max_tokens']} tokens were asked for, and {usage} came")


async def streamed(session: aiohttp.ClientSession, rng: random.Random) -> None:
    body = {"model": "demo", "messages": MESSAGES, "max_tokens": rng.randint(1, 8), "stream": True}
    async with session.post("/v1/chat/completions", json=body) as answer:
        expect(answer, 200)
        if not (await answer.read()).endswith(b"data: [DONE]\n\n"):
            raise AssertionError("a stream ended without [DONE]")


async def hangs_up(session: aiohttp.ClientSession, rng: random.Random) -> None:
    body = {"model": "demo", "prompt": prompt(rng), "max_tokens": 200, "ignore_eos": True, "stream": True}
    async with session.post("/v1/completions", json=body) as answer:
        expect(answer, 200)
        for _ in range(rng.randint(0, 6)):
            await answer.content.readline()
        answer.close()


async def refused(session: aiohttp.ClientSession, rng: random.Random) -> None:
    wrong: dict[str, Any] = rng.choice(
        [{"temperature": -1}, {"prompt": [10**9]}, {"max_tokens": 0}, {"suffix": "x"}, {"model": "another"}]
    )
    async with session.post("/v1/completions", json={"model": "demo", "prompt": "x", **wrong}) as answer:
        expect(answer, 404 if "model" in wrong else 400)


KINDS: tuple[tuple[Callable[[aiohttp.ClientSession, random.Random], Awaitable[None]], int], ...] = (
    (plain, 70),
    (streamed, 15),
    (hangs_up, 10),
    (refused, 5),
)


def prompt(rng: random.Random) -> list[int]:
    return [rng.randint(100, 1000) for _ in range(rng.randint(1, 24))]


def expect(answer: aiohttp.ClientResponse, status: int) -> None:
    if answer.status != status:
        raise AssertionError(f"{answer.status} came where {status} was expected")


async def load(service: Service, args: argparse.Namespace, memory: Memory) -> Counter[str]:
    """Send all requests; return the failures by kind."""
    kinds, weights = zip(*KINDS, strict=True)
    rng = random.Random(args.seed)
    numbers = iter(range(args.requests))
    every = max(1, args.requests // SAMPLES)
    failures: Counter[str] = Counter()
    columns = (TextColumn("requests"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    with Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("requests", total=args.requests)
        async with aiohttp.ClientSession(service.url, connector=connector, timeout=timeout) as session:

            async def client() -> None:
                for number in numbers:
                    kind = rng.choices(kinds, weights)[0]
                    try:
                        await kind(session, rng)
                    except (AssertionError, aiohttp.ClientError, TimeoutError) as error:
                        failures[f"{kind.__name__}: {type(error).__name__}: {error}"] += 1
                    if number % every == 0:
                        memory.look(service)
                        print(told(number, memory), flush=True)
                    progress.advance(task)

            async with asyncio.TaskGroup() as group:
                for _ in range(args.concurrency):
                    group.create_task(client())
    return failures


def told(number: int, memory: Memory) -> str:
    return f"{number:>8} " + "  ".join(f"{name} {samples[-1]:.1f} MiB" for name, samples in memory.samples.items())


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_cpu(service: Service) -> dict[str, float]:
    # The share of a core.
    parts = service.parts()
    before = {part.name: cpu_seconds(part.pid) for part in parts}
    start = time.monotonic()
    time.sleep(IDLE_SECONDS)
    seconds = time.monotonic() - start
    return {part.name: (cpu_seconds(part.pid) - before[part.name]) / seconds for part in parts}


def judge(service: Service, failures: Counter[str], memory: Memory) -> list[str]:
    """Return a sentence for each broken bound."""
    wrong = [f"{count} × {what}" for what, count in failures.most_common(10)]
    for name, grown in memory.growth().items():
        print(f"{name}: grown by {grown:+.1f} MiB since the warm-up")
        if grown > GROWTH_MIB:
            wrong.append(f"{name} has grown by {grown:.1f} MiB")
    for name, share in idle_cpu(service).items():
        print(f"{name}: {share:.2%} of a core when idle")
        if share >= IDLE_CPU:
            wrong.append(f"{name} takes {share:.2%} of a core when idle")
    for engine in service.engines():
        for metric in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
            if left := service.metric(engine.ops, metric):
                wrong.append(f"{engine.name}: {metric} is {left:g} when idle")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    memory = Memory()
    with running("up", str(ROOT / "manifests/examples/demo.yaml"), "--port", "0") as service:
        start = time.monotonic()
        failures = asyncio.run(load(service, args, memory))
        seconds = time.monotonic() - start
        print(f"{args.requests} requests in {seconds:.0f} s = {args.requests / seconds:.0f} a second")
        wrong = judge(service, failures, memory)
    print("\n".join(wrong) if wrong else "all holds")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
