"""Load generator for any server of the OpenAI API: output rate, TTFT, TPOT and end-to-end percentiles.

    python bench/load.py --url http://127.0.0.1:8000 --concurrency 16 --input-len 128 --output-len 128

Prompts are random token ids for /v1/completions (`--input-len`), or the lines of a file (`--prompts`). Each request
streams; a token's time is the time its chunk arrived. `--disconnect 0.1` hangs up on a tenth of the requests after
a few tokens. Exit code 1 when a request failed.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@dataclasses.dataclass
class Outcome:
    """One request as its client saw it; times in seconds of time.perf_counter()."""

    start: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    prompt_tokens: int = 0
    hung_up: bool = False
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.first - self.start

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / (self.tokens - 1)

    @property
    def end_to_end(self) -> float:
        return self.last - self.start


@dataclasses.dataclass(frozen=True)
class Plan:
    """One request to send."""

    body: dict[str, Any]
    hang_up_after: int | None
    """Chunks after which the client closes the connection."""


def plans(args: argparse.Namespace, model: str) -> list[Plan]:
    rng = random.Random(args.seed)
    texts = args.prompts.read_text().splitlines() if args.prompts else None
    result = []
    for index in range(args.requests):
        prompt: str | list[int] = (
            texts[index % len(texts)]
            if texts
            else rng.choices(range(args.vocab_low, args.vocab_high), k=args.input_len)
        )
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": args.output_len,
            "temperature": args.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if args.ignore_eos:
            body["ignore_eos"] = True
        hang_up = rng.random() < args.disconnect
        result.append(Plan(body, rng.randint(1, 8) if hang_up else None))
    return result


async def send(session: aiohttp.ClientSession, url: str, plan: Plan) -> Outcome:
    """Send one request and read its stream to the end, or to where the plan hangs up."""
    outcome = Outcome(start=time.perf_counter())
    chunks = 0
    try:
        async with session.post(f"{url}/v1/completions", json=plan.body) as answer:
            if answer.status != 200:
                outcome.error = f"{answer.status}: {(await answer.text())[:200]}"
                return outcome
            async for event in events(answer):
                if "error" in event:
                    outcome.error = str(event["error"].get("message"))
                    return outcome
                if usage := event.get("usage"):
                    outcome.tokens, outcome.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
                if not event["choices"]:
                    continue
                chunks += 1
                outcome.last = time.perf_counter()
                outcome.first = outcome.first or outcome.last
                if plan.hang_up_after is not None and chunks >= plan.hang_up_after:
                    outcome.hung_up = True
                    return outcome
        if not outcome.first:
            outcome.error = "the stream ended without a token"
    except (aiohttp.ClientError, TimeoutError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.tokens = outcome.tokens or chunks
    return outcome


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[len(b"data: ") :])


async def run(args: argparse.Namespace) -> tuple[list[Outcome], float]:
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=args.timeout)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
        model = args.model
        if model is None:
            async with session.get(f"{args.url}/v1/models") as answer:
                answer.raise_for_status()
                model = (await answer.json())["data"][0]["id"]
        todo = plans(args, model)
        for plan in todo[: args.warmup]:
            await send(session, args.url, dataclasses.replace(plan, hang_up_after=None))
        queue = iter(todo)
        outcomes: list[Outcome] = []
        columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task("requests", total=len(todo))

            async def client() -> None:
                for plan in queue:  # shared: each plan is taken once
                    outcomes.append(await send(session, args.url, plan))
                    progress.advance(task)

            start = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(args.concurrency):
                    group.create_task(client())
            return outcomes, time.perf_counter() - start


def percentiles(values: list[float], scale: float = 1000.0) -> dict[str, float]:
    """Mean, median, 90th and 99th percentile, in milliseconds by default."""
    if not values:
        return dict.fromkeys(("mean", "p50", "p90", "p99"), float("nan"))
    ordered = sorted(values)
    at = {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for name, share in (("p90", 0.9), ("p99", 0.99))
    }
    result = {"mean": statistics.fmean(values), "p50": statistics.median(values)} | at
    return {name: value * scale for name, value in result.items()}


def summary(outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    done = [outcome for outcome in outcomes if not outcome.error and not outcome.hung_up]
    tokens = sum(outcome.tokens for outcome in done)
    return {
        "requests": len(outcomes),
        "finished": len(done),
        "hung_up": sum(outcome.hung_up for outcome in outcomes),
        "failed": sum(bool(outcome.error) for outcome in outcomes),
        "seconds": seconds,
        "requests_per_second": len(done) / seconds,
        "output_tokens_per_second": tokens / seconds,
        "prompt_tokens": sum(outcome.prompt_tokens for outcome in done),
        "output_tokens": tokens,
        "ttft_ms": percentiles([outcome.ttft for outcome in done]),
        "tpot_ms": percentiles([outcome.tpot for outcome in done if outcome.tokens > 1]),
        "end_to_end_ms": percentiles([outcome.end_to_end for outcome in done]),
    }


def show(result: dict[str, Any]) -> None:
    print(
        f"requests   {result['finished']} finished, {result['hung_up']} hung up, {result['failed']} failed "
        f"in {result['seconds']:.2f} s = {result['requests_per_second']:.1f} req/s"
    )
    print(
        f"tokens     {result['prompt_tokens']} in, {result['output_tokens']} out = "
        f"{result['output_tokens_per_second']:.1f} output tok/s"
    )
    print("                    mean      p50      p90      p99")
    for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("end to end", "end_to_end_ms")):
        row = "".join(f"{result[key][column]:9.1f}" for column in ("mean", "p50", "p90", "p99"))
        print(f"{name:<11} ms {row}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="base URL of the server, without /v1")
    parser.add_argument("--model", help="model name [default: the first one served]")
    parser.add_argument("--api-key")
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=8, help="streams at a time")
    parser.add_argument("--input-len", type=int, default=128, help="random tokens per prompt")
    parser.add_argument("--output-len", type=int, default=128, help="max_tokens")
    parser.add_argument("--vocab-low", type=int, default=100, help="random token ids from here")
    parser.add_argument("--vocab-high", type=int, default=1000, help="to below here")
    parser.add_argument("--prompts", type=Path, help="a file with a prompt per line, instead of random tokens")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--ignore-eos", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--disconnect", type=float, default=0.0, metavar="SHARE", help="share that hangs up")
    parser.add_argument("--warmup", type=int, default=1, help="requests before the clock starts")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds per request")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    try:
        outcomes, seconds = asyncio.run(run(args))
    except aiohttp.ClientError as error:
        print(f"no OpenAI server answers at {args.url}: {error}", file=sys.stderr)
        return 1
    result = summary(outcomes, seconds)
    show(result)
    for message in sorted({outcome.error for outcome in outcomes if outcome.error}):
        print(f"failed: {message}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
