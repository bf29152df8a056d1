"""Send a workload to a server, and collect what its clients see.

The loop is closed by default: each of `concurrency` streams sends its next request when the last one is answered.
With a request rate it is open: requests leave at Poisson times, and a concurrency only bounds their number in
flight.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from kvasir.benchmark.figures import DraftCounts, RequestOutcome, draft_counts, draft_figures
from kvasir.benchmark.timed_request import send
from kvasir.benchmark.workload import CONCURRENCY, Pace, RequestPlan, Workload, plans
from kvasir.config.options import CommandFailed


@dataclass(frozen=True)
class Measured:
    """The outcome of each request, and the seconds from the first start to the last end."""

    model: str
    outcomes: list[RequestOutcome]
    seconds: float
    # By Ctrl-C. Requests in flight have no outcome.
    interrupted: bool = False
    # Of speculative decoding, if the server does it and shows its metrics.
    drafts: dict[str, Any] | None = None


async def measure(
    url: str, api_key: str | None, workload: Workload, pace: Pace, progress: Callable[[int, int], None]
) -> Measured:
    """Return the outcomes; `progress` gets the requests done and in all. Raises CommandFailed if no server
    answers.

    A cancellation ends the measurement with the figures so far.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connector = aiohttp.TCPConnector(limit=0, force_close=pace.new_connections)
    timeout = aiohttp.ClientTimeout(total=pace.timeout)
    async with aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session:
        model = workload.model or await _first_model(session, url)
        todo = plans(workload, model)
        for plan in todo[: pace.warmup]:
            await _warm_up(session, url, plan)
        outcomes: list[RequestOutcome] = []

        async def one(plan: RequestPlan) -> None:
            outcomes.append(await send(session, url, plan))
            progress(len(outcomes), len(todo))

        progress(0, len(todo))
        before = await read_draft_counts(session, url)
        start = time.perf_counter()
        interrupted = False
        try:
            await _send_all(todo, pace, workload.seed, one)
        except asyncio.CancelledError:
            interrupted = True
        seconds = time.perf_counter() - start
        drafts = None if interrupted else draft_figures(before, await read_draft_counts(session, url))
        return Measured(model, outcomes, seconds, interrupted, drafts)


async def read_draft_counts(session: aiohttp.ClientSession, url: str) -> DraftCounts:
    """Return the counts of all engines, or nothing if the server shows none."""
    try:
        async with session.get(f"{url}/metrics") as answer:
            return draft_counts(await answer.text() if answer.status == 200 else "")
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return {}


def arrivals(rate: float | None, seed: int) -> Iterator[float]:
    # Exponential gaps, or all at once.
    rng, at = random.Random(seed), 0.0
    while True:
        yield at
        at += rng.expovariate(rate) if rate is not None else 0.0


async def _send_all(
    todo: Sequence[RequestPlan], pace: Pace, seed: int, one: Callable[[RequestPlan], Awaitable[None]]
) -> None:
    limit = pace.concurrency or (CONCURRENCY if pace.request_rate is None else len(todo))
    free = asyncio.Semaphore(limit)

    async def run(plan: RequestPlan) -> None:
        try:
            await one(plan)
        finally:
            free.release()

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for plan, at in zip(todo, arrivals(pace.request_rate, seed), strict=False):
            if (pause := start + at - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            await free.acquire()
            group.create_task(run(plan))


async def _warm_up(session: aiohttp.ClientSession, url: str, plan: RequestPlan) -> None:
    # A server that rejects one request rejects all: the error comes before the measurement.
    outcome = await send(session, url, replace(plan, hang_up_after=None))
    if outcome.error:
        raise CommandFailed(f"{url}{plan.path}: {outcome.error}")


async def _first_model(session: aiohttp.ClientSession, url: str) -> str:
    try:
        async with session.get(f"{url}/v1/models") as answer:
            text = await answer.text()
            if answer.status != 200:
                raise CommandFailed(f"{url}/v1/models answers {answer.status}: {text[:200]}")
            return str((await answer.json(content_type=None))["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError) as error:
        raise CommandFailed(f"no OpenAI server answers at {url}: {error}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise CommandFailed(f"{url} does not list its models as an OpenAI server does; give --model") from error
