"""Generation with and without speculative decoding, alternating: rates, their ratio, and whether outputs are equal.

    python -m bench.speculation                                    # demo://, n-grams, 1 and 16 streams
    python -m bench.speculation --model DIR --config '{"method": "suffix"}' --rounds 7

Starts two services, of which one computes at a time. Three loads: one stream of repetitive text (a prompt that
repeats itself, greedy), one of random text (random words, temperature 1), and many streams of both. Prints medians,
and the lowest and the highest value in brackets; then the acceptance of the drafts.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from kvasir.benchmark.draft_figures import draft_figures, draft_lines, read_draft_counts  # noqa: E402
from kvasir.config.machine import cgroup_cores, cpu_name  # noqa: E402
from service.running import running  # noqa: E402

STANZA: Final = """
def read_{name}(path: str) -> list[str]:
    \"\"\"Return the lines of the {name} file.\"\"\"
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]
"""
NAMES: Final = ("orders", "customers", "invoices", "products")
WORDS: Final = ("amber", "bridge", "copper", "dune", "ember", "falcon", "garnet", "harbor", "island", "juniper")


@dataclass(frozen=True)
class Load:
    name: str
    prompts: Sequence[Callable[[int], dict[str, Any]]]


@dataclass
class Measured:
    rates: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    different: int = 0


def repetitive(number: int) -> dict[str, Any]:
    text = f"# module {number}\n" + "".join(STANZA.format(name=name) for name in NAMES)
    return {"prompt": text + f"\n\n# copy of module {number}\n" + text[: len(text) // 3], "temperature": 0}


def drawn(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    words = " ".join(rng.choice(WORDS) + str(rng.randrange(100)) for _ in range(40))
    return {"prompt": words, "temperature": 1.0, "seed": number}


async def run(
    session: aiohttp.ClientSession, url: str, load: Load, first: int, tokens: int
) -> tuple[float, list[str]]:
    """Return tokens per second and the texts."""

    async def one(body: dict[str, Any]) -> str:
        body |= {"max_tokens": tokens, "ignore_eos": True}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            answer = await response.json()
        if response.status != 200 or answer["usage"]["completion_tokens"] != tokens:
            raise SystemExit(f"a request failed: {answer}")
        return str(answer["choices"][0]["text"])

    begun = time.perf_counter()
    texts = await asyncio.gather(*(one(make(first + at)) for at, make in enumerate(load.prompts)))
    return tokens * len(texts) / (time.perf_counter() - begun), texts


async def measure(urls: dict[bool, str], loads: Sequence[Load], args: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(1200)) as session:
        for load in loads:
            before = await read_draft_counts(session, urls[True])
            measured = Measured()
            for number in range(-1, args.rounds):  # the first one warms up
                texts: dict[bool, list[str]] = {}
                for speculates in (False, True) if number % 2 else (True, False):
                    rate, texts[speculates] = await run(
                        session, urls[speculates], load, 1000 * (number + 2), args.tokens
                    )
                    if number >= 0:
                        measured.rates[speculates].append(rate)
                measured.different += sum(one != other for one, other in zip(*texts.values(), strict=True))
            show(load.name, measured)
            if figures := draft_figures(before, await read_draft_counts(session, urls[True])):
                print("\n".join(f"  {line}" for line in draft_lines(figures)), flush=True)


def show(name: str, measured: Measured) -> None:
    plain, speculating = measured.rates[False], measured.rates[True]
    ratios = [one / other for one, other in zip(speculating, plain, strict=True)]
    for what, values, digits in (
        (f"{name}, plain, tok/s", plain, 1),
        (f"{name}, speculating, tok/s", speculating, 1),
        ("  ratio by round", ratios, 3),
    ):
        low, high = min(values), max(values)
        print(f"{what:<44} {statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})")
    print(f"  different outputs: {measured.different}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo://")
    parser.add_argument("--config", default='{"method": "ngram"}', help="of the service that speculates")
    parser.add_argument("--streams", type=int, default=16, help="of the third load")
    parser.add_argument("--tokens", type=int, default=192, help="of each output")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--option", action="append", default=[], help="of kvasir serve; = before its value")
    args = parser.parse_args()
    loads = [
        Load("1 stream, repetitive", [repetitive]),
        Load("1 stream, random", [drawn]),
        Load(f"{args.streams} streams, both", [repetitive, drawn] * (args.streams // 2)),
    ]
    command = ("serve", args.model, "--port", "0", "--device", "cpu", *args.option)
    with running(*command) as plain, running(*command, "--speculative-config", args.config) as speculating:
        load = f"{os.getloadavg()[0]:.1f}"
        print(f"{cpu_name()}, {cgroup_cores()} cores, load {load}; {args.model}; {args.config}", flush=True)
        asyncio.run(measure({False: plain.url, True: speculating.url}, loads, args))


if __name__ == "__main__":
    main()
