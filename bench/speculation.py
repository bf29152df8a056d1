"""Generation with and without speculative decoding, alternating: rates, their ratio, and whether outputs are equal.

    python -m bench.speculation                                    # demo://, n-grams, 1 and 16 streams
    python -m bench.speculation --model DIR --config '{"method": "suffix"}' --rounds 7

Starts two services, of which one computes at a time. Three loads: one stream of repetitive text (questions that are
asked again, greedy), one of random text (random words, temperature 2), and many streams of both. Prints medians and
their range: rates by the clock, and the ratio of the engines' CPU times, which other processes disturb less.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from kvasir.benchmark.figures import draft_figures, draft_lines  # noqa: E402
from kvasir.benchmark.load_generator import read_draft_counts  # noqa: E402
from kvasir.config.hardware.machine import cgroup_cores, cpu_name  # noqa: E402
from service.running import Service, running  # noqa: E402

QUESTIONS: Final = (
    "What is Kubernetes?",
    "What is a prompt?",
    "What is preemption?",
    "What is continuous batching?",
    "What is a pod?",
    "What is a KV cache?",
    "What is quantisation?",
    "What is a rank?",
)
WORDS: Final = ("amber", "bridge", "copper", "dune", "ember", "falcon", "garnet", "harbor", "island", "juniper")

Body = dict[str, Any]


@dataclass(frozen=True)
class Load:
    name: str
    streams: Sequence[Sequence[Body]]


@dataclass
class Measured:
    rates: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    # CPU seconds per token.
    costs: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    different: int = 0


class Client:
    def __init__(self, session: aiohttp.ClientSession, tokens: int) -> None:
        self._session = session
        self._tokens = tokens

    async def ask(self, url: str, body: Body) -> tuple[int, str]:
        """Return the number of tokens and the text."""
        body = body | {"max_tokens": self._tokens}
        async with self._session.post(f"{url}/v1/chat/completions", json=body) as response:
            answer = await response.json()
        if response.status != 200:
            raise SystemExit(f"a request failed: {answer}")
        return answer["usage"]["completion_tokens"], answer["choices"][0]["message"]["content"]

    async def repeated(self, url: str, number: int) -> Body:
        """Return a conversation in which a question has been answered and is asked again."""
        question = {"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}
        _, answer = await self.ask(url, {"messages": [question], "temperature": 0})
        return {"messages": [question, {"role": "assistant", "content": answer}, question], "temperature": 0}

    async def run(self, url: str, load: Load) -> tuple[int, float, list[str]]:
        """Return tokens, seconds and the texts."""

        async def one(bodies: Sequence[Body]) -> list[tuple[int, str]]:
            return [await self.ask(url, body) for body in bodies]

        begun = time.perf_counter()
        streams = await asyncio.gather(*map(one, load.streams))
        seconds = time.perf_counter() - begun
        answers = [answer for stream in streams for answer in stream]
        return sum(tokens for tokens, _ in answers), seconds, [text for _, text in answers]


def drawn(number: int) -> Body:
    rng = random.Random(number)
    words = " ".join(rng.choice(WORDS) + str(rng.randrange(100)) for _ in range(30))
    asked = [{"role": "user", "content": words}]
    return {"messages": asked, "temperature": 2.0, "seed": number, "ignore_eos": True}


async def new_loads(client: Client, url: str, streams: int) -> list[Load]:
    repeated = [await client.repeated(url, number) for number in range(len(QUESTIONS))]
    random_ones = [drawn(number) for number in range(streams // 2)]
    return [
        Load("1 stream, repeated answers", [repeated]),
        Load("1 stream, random", [random_ones[:3]]),
        Load(
            f"{streams} streams, both",
            [[repeated[at % len(repeated)], each] for at, each in enumerate(random_ones)] * 2,
        ),
    ]


def cpu_seconds(service: Service) -> float:
    ticks = 0
    for engine in service.engines():
        fields = Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(services: dict[bool, Service], args: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(1200)) as session:
        client = Client(session, args.tokens)
        for number, load in enumerate(await new_loads(client, services[False].url, args.streams), 1):
            if str(number) not in args.loads:
                continue
            before = await read_draft_counts(session, services[True].url)
            measured = Measured()
            for turn in range(-1, args.rounds):  # the first one warms up
                texts: dict[bool, list[str]] = {}
                for speculates in (False, True) if turn % 2 else (True, False):
                    service = services[speculates]
                    cpu = cpu_seconds(service)
                    tokens, seconds, texts[speculates] = await client.run(service.url, load)
                    if turn >= 0:
                        measured.rates[speculates].append(tokens / seconds)
                        measured.costs[speculates].append((cpu_seconds(service) - cpu) / tokens)
                measured.different += sum(one != other for one, other in zip(*texts.values(), strict=True))
            show(load.name, measured)
            if figures := draft_figures(before, await read_draft_counts(session, services[True].url)):
                print("\n".join(f"  {line}" for line in draft_lines(figures)), flush=True)


def show(name: str, measured: Measured) -> None:
    plain, speculating = measured.rates[False], measured.rates[True]
    ratios = [one / other for one, other in zip(speculating, plain, strict=True)]
    by_cpu = [one / other for one, other in zip(measured.costs[False], measured.costs[True], strict=True)]
    for what, values, digits in (
        (f"{name}, plain, tok/s", plain, 1),
        (f"{name}, speculating, tok/s", speculating, 1),
        ("  ratio by the clock", ratios, 3),
        ("  ratio by CPU time", by_cpu, 3),
    ):
        low, high = min(values), max(values)
        print(f"{what:<44} {statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
    print(f"  different outputs: {measured.different}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo://")
    parser.add_argument("--config", default='{"method": "ngram"}', help="of the service that speculates")
    parser.add_argument("--loads", default="1,2,3", help="numbers of the loads")
    parser.add_argument("--streams", type=int, default=16, help="of the third load")
    parser.add_argument("--tokens", type=int, default=192, help="of each output")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--option", action="append", default=[], help="of kvasir serve; = before its value")
    args = parser.parse_args()
    command = ("serve", args.model, "--port", "0", "--device", "cpu", *args.option)
    with running(*command) as plain, running(*command, "--speculative-config", args.config) as speculating:
        load = f"{os.getloadavg()[0]:.1f}"
        print(f"{cpu_name()}, {cgroup_cores()} cores, load {load}; {args.model}; {args.config}", flush=True)
        asyncio.run(measure({False: plain, True: speculating}, args))


if __name__ == "__main__":
    main()
