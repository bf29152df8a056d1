"""Cost of structured output: rate with many schemas at once, and first tokens, next to plain generation.

    python -m bench.structured                          # 32 streams, a Llama of 152 M with 32,768 tokens
    python -m bench.structured --vocab 131072 --rounds 5
    python -m bench.structured --model demo://

Starts one service. A round is a pass of plain requests and one of requests with a JSON Schema each, as many tokens
of each, in alternating order; every schema was compiled before. Then first tokens of single requests: plain, with a
schema that was compiled before, and with a new one. The outputs are drawn at random (temperature 1), so that they
lead through the whole grammar. Prints medians, and the lowest and the highest value in brackets.
"""

import argparse
import asyncio
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from bench.schemas import response_format  # noqa: E402

from kvasir.benchmark.request_outcome import RequestOutcome  # noqa: E402
from kvasir.benchmark.timed_request import send  # noqa: E402
from kvasir.benchmark.workload import RequestPlan  # noqa: E402
from kvasir.config.machine import cgroup_cores, cpu_name  # noqa: E402
from service.running import running  # noqa: E402

# No two prompts begin alike, and new schemas are new, also for a service that has been measured before.
_numbers = itertools.count(random.randrange(2**32))


@dataclass(frozen=True)
class Pass:
    # Tokens per second of all streams.
    rate: float
    # Median seconds until the first token.
    first: float
    outcomes: Sequence[RequestOutcome]


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, tokens: int) -> None:
        self._session = session
        self._url = url
        self._tokens = tokens

    async def all_at_once(self, schemas: Sequence[str | None]) -> Pass:
        # None: a request without a schema.
        begun = time.perf_counter()
        outcomes = await asyncio.gather(*(self._ask(schema, self._tokens) for schema in schemas))
        seconds = time.perf_counter() - begun
        if short := [outcome for outcome in outcomes if outcome.tokens != self._tokens]:
            raise SystemExit(f"{len(short)} outputs have other lengths, one of them {short[0].tokens} tokens")
        first = statistics.median(outcome.ttft for outcome in outcomes)
        return Pass(sum(outcome.tokens for outcome in outcomes) / seconds, first, outcomes)

    async def first_token(self, schema: str | None) -> float:
        return (await self._ask(schema, 4)).ttft

    async def _ask(self, schema: str | None, tokens: int) -> RequestOutcome:
        number = next(_numbers)
        body: dict[str, Any] = {
            "prompt": f"{number} pods of a service: the engine serves many requests at once, and its cache holds",
            "max_tokens": tokens,
            "temperature": 1.0,
            "seed": number,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body |= {"ignore_eos": True} if schema is None else {"response_format": response_format(schema)}
        outcome = await send(self._session, self._url, RequestPlan("/v1/completions", body))
        if outcome.error:
            raise SystemExit(f"a request failed: {outcome.error}")
        return outcome


async def measure(url: str, args: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(600)) as session:
        client = Client(session, url, args.tokens)
        schemas = [f"s{number}" for number in range(args.schemas)]
        new = await client.all_at_once(schemas)
        await client.all_at_once([None] * args.schemas)
        plain, structured = await rounds(client, schemas, args.rounds)
        show(f"{args.schemas} streams, plain, tok/s", [each.rate for each in plain])
        show(f"{args.schemas} streams, {args.schemas} schemas, tok/s", [each.rate for each in structured])
        ratios = [one.rate / other.rate for one, other in zip(structured, plain, strict=True)]
        show("  rate with schemas / plain rate, by round", ratios)
        show("  first token of all, plain, ms", [each.first * 1000 for each in plain])
        show("  first token of all, cached schemas, ms", [each.first * 1000 for each in structured])
        show("  first token of all, new schemas, ms", [each.ttft * 1000 for each in new.outcomes])
        await first_tokens(client, args.singles)


async def rounds(client: Client, schemas: Sequence[str], count: int) -> tuple[list[Pass], list[Pass]]:
    plain, structured = [], []
    nothing = [None] * len(schemas)
    for number in range(count):
        if number % 2:
            structured.append(await client.all_at_once(schemas))
            plain.append(await client.all_at_once(nothing))
        else:
            plain.append(await client.all_at_once(nothing))
            structured.append(await client.all_at_once(schemas))
        print(f"round {number + 1}: {plain[-1].rate:.0f} and {structured[-1].rate:.0f} tok/s", file=sys.stderr)
    return plain, structured


async def first_tokens(client: Client, count: int) -> None:
    # One request at a time, the kinds in turn.
    plain, cached, new = [], [], []
    for _ in range(count):
        plain.append(await client.first_token(None))
        cached.append(await client.first_token("s0"))
        new.append(await client.first_token(f"n{next(_numbers)}"))
    show("first token of one, plain, ms", [each * 1000 for each in plain])
    show("first token of one, cached schema, ms", [each * 1000 for each in cached])
    show("  cached schema / plain, medians", [statistics.median(cached) / statistics.median(plain)])
    show("first token of one, new schema, ms", [each * 1000 for each in new])


def show(what: str, values: Sequence[float]) -> None:
    digits = 3 if max(values) < 10 else 1
    low, high = min(values), max(values)
    spread = f" ({low:.{digits}f} to {high:.{digits}f})" if len(values) > 1 else ""
    print(f"{what:<48} {statistics.median(values):.{digits}f}{spread}", flush=True)


def model(args: argparse.Namespace) -> str:
    """Return the model to serve; make it if there is none."""
    if args.model is not None:
        return str(args.model)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kvasir/bench/models"
    folder = cache / f"text-{args.vocab}"
    if not (folder / "model.safetensors").exists():
        options = ["--vocab", str(args.vocab), "--train-tokenizer"]
        subprocess.run([sys.executable, ROOT / "bench/make_llama.py", folder, *options], check=True)
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="[default: a random Llama with --vocab tokens, made once]")
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--schemas", type=int, default=32, help="and streams")
    parser.add_argument("--tokens", type=int, default=128, help="of each output")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--singles", type=int, default=20, help="first tokens of each kind")
    parser.add_argument("--option", action="append", default=[], help="of kvasir serve; = before its value")
    args = parser.parse_args()
    source = model(args)
    with running("serve", source, "--port", "0", "--device", "cpu", *args.option) as service:
        print(f"{cpu_name()}, {cgroup_cores()} cores; {source}; {args.tokens} tokens of each output", flush=True)
        asyncio.run(measure(service.url, args))


if __name__ == "__main__":
    main()
