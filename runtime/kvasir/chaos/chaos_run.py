"""A chaos run: answers of the undisturbed service, then load and disturbances at once, then the report."""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import aiohttp

from kvasir.chaos.answers import Answer, ask, difference
from kvasir.chaos.disturbances import ChaosTarget, Disturbance, DisturbanceKind, Havoc, Load
from kvasir.chaos.questions import STOP_STRING, Question, continued, names, with_stop
from kvasir.chaos.report import INTERRUPTED, CheckedAnswer, Event, Report, longest_gap
from kvasir.config.options import CommandFailed
from kvasir_contract.endpoints import METRICS_PATH

_LOOK_SECONDS: Final = 0.2


_USABLE: Final = re.compile(r'^kvasir:engine_usable\{.*\bengine="([^"]*)".*\} 1(?:\.0)?$', re.MULTILINE)


_MOVES: Final = re.compile(r"^kvasir:migrations_total(?:\{.*\})? (\S+)$", re.MULTILINE)


_MAX_SECONDS_UNTIL_NOTICED: Final = 5.0


class ServiceView:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url + METRICS_PATH

    async def moves(self) -> int:
        return int(sum(float(value) for value in _MOVES.findall(await self._metrics())))

    async def usable(self) -> set[str]:
        return set(_USABLE.findall(await self._metrics()))

    async def recovery(self, ranks: set[str], disturbed: "asyncio.Task[None]", limit: float) -> float | None:
        """Return the seconds until these engines take requests again after the disturbance; None after `limit`.

        0 for a loss that the frontend has not noticed soon after the disturbance: there was none.
        """
        since = time.monotonic()
        noticed, over = False, 0.0
        while (now := time.monotonic()) - since < limit:
            complete = ranks <= await self.usable()
            if disturbed.done():
                over = over or now
                if noticed and complete:
                    return now - since
                if not noticed and now - over > _MAX_SECONDS_UNTIL_NOTICED:
                    return 0.0
            noticed = noticed or not complete
            await asyncio.sleep(_LOOK_SECONDS)
        return None

    async def _metrics(self) -> str:
        """Return the metrics. Raises CommandFailed without an answer."""
        try:
            async with self._session.get(self._url) as response:
                return await response.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise CommandFailed(f"{self._url} does not answer: {error}") from error


Note = Callable[[str], None]
_MAX_RECOMPUTED: Final = 64
_MOVES_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Known:
    question: Question
    answer: Answer


async def run(
    url: str,
    api_key: str | None,
    load: Load,
    havoc: Havoc,
    asked: Sequence[Question],
    target: ChaosTarget,
    *,
    plan: Sequence[Disturbance],
    seed: int,
    note: Note,
) -> Report:
    """Return the report. Raises CommandFailed if the undisturbed service does not answer, or has too few
    engines."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = aiohttp.ClientTimeout(total=load.timeout)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        await target.engines()  # before a long measurement
        view = ServiceView(session, url)
        ranks = await view.usable()
        if not ranks:
            raise CommandFailed(f"{url} has no engine that takes requests: wait until it is ready")
        client = _Client(session, url, load.concurrency)
        report = Report(seed, tolerance=load.tolerance)
        known = await _reference(client, asked, report, note)
        note(f"{len(ranks)} engines, {len(plan)} disturbances, {len(known)} known answers")
        moved, began = await view.moves(), time.monotonic()
        havoc_run = _HavocRun(target, view, ranks, havoc, note)
        try:
            await _disturb_under_load(client, known, load, havoc_run, plan, report)
        except CommandFailed as error:
            report.stopped_by = str(error)
        except asyncio.CancelledError:
            report.stopped_by = INTERRUPTED
        report.seconds = time.monotonic() - began
        report.events = havoc_run.events
        with contextlib.suppress(CommandFailed, TimeoutError):  # the service may be gone
            async with asyncio.timeout(_MOVES_SECONDS):
                report.moved = await view.moves() - moved
    return report


class _Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, concurrency: int) -> None:
        self._session = session
        self._url = url
        self.concurrency = concurrency
        self._free = asyncio.Semaphore(concurrency)

    async def ask(self, question: Question) -> Answer:
        async with self._free:
            return await ask(self._session, self._url, question)

    async def ask_all(self, asked: Sequence[Question]) -> list[Answer]:
        return await asyncio.gather(*map(self.ask, asked))


async def _reference(client: _Client, asked: Sequence[Question], report: Report, note: Note) -> list[Known]:
    """Return the requests that the undisturbed service answers twice in the same way."""
    stops = [question for question in asked if question.kind == STOP_STRING]
    whole = dict(zip(map(id, stops), await client.ask_all(stops), strict=True))
    asked = [with_stop(one, whole[id(one)].text) if id(one) in whole else one for one in asked]
    known = [Known(*pair) for pair in zip(asked, await client.ask_all(asked), strict=True)]
    if failed := [one for one in known if one.answer.error]:
        note(f"left out, because the service rejects them: {', '.join(names([one.question for one in failed]))}")
    known = [one for one in known if not one.answer.error]
    if not known:
        raise CommandFailed(f"the service answers no request: {failed[0].answer.error}")
    again = await client.ask_all([one.question for one in known])
    steady = [
        one
        for one, other in zip(known, again, strict=True)
        if not other.error and not difference(other.content, one.answer.content, report.tolerance)
    ]
    report.unsteady = len(known) - len(steady)
    if not steady:
        raise CommandFailed("no two undisturbed answers are the same: use --dtype float32, or another --tolerance")
    report.undisturbed_gaps = [
        longest_gap([answer.sent, *answer.chunks]) for answer in again if answer.chunks and not answer.error
    ]
    report.recomputation = await _recomputation(client, steady)
    return steady


async def _recomputation(client: _Client, known: Sequence[Known]) -> list[float]:
    """Return the seconds in which prompts with their answers are computed again, up to the next token."""
    asked = [continued(one.question, one.answer.text, number) for number, one in enumerate(known[:_MAX_RECOMPUTED])]
    return [answer.ended - answer.sent for answer in await client.ask_all(asked) if not answer.error]


async def _disturb_under_load(
    client: _Client,
    known: Sequence[Known],
    load: Load,
    havoc_run: "_HavocRun",
    plan: Sequence[Disturbance],
    report: Report,
) -> None:
    # A failure of the target ends the load.
    rng = random.Random(f"load {report.seed}")
    disturbing = asyncio.create_task(havoc_run.run(plan))
    sent = 0

    async def work() -> None:
        nonlocal sent
        while sent < load.requests or not disturbing.done():
            sent += 1
            one = rng.choice(known)
            report.exchanges.append(CheckedAnswer(one.question, await client.ask(one.question), one.answer.content))
            if report.exchanges[-1].answer.error:
                await asyncio.sleep(0.5)  # a service that refuses everything is not asked in a tight loop

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(client.concurrency):
                workers.create_task(work())
        await disturbing
    finally:
        disturbing.cancel()
        await asyncio.wait([disturbing])


class _HavocRun:
    """Carries out the plan: each disturbance waits until enough engines take requests."""

    def __init__(self, target: ChaosTarget, view: ServiceView, ranks: set[str], havoc: Havoc, note: Note) -> None:
        self._target = target
        self._view = view
        self._ranks = ranks
        self._havoc = havoc
        self._note = note
        self._disturbed: set[str] = set()
        self.events: list[Event] = []

    async def run(self, plan: Sequence[Disturbance]) -> None:
        try:
            await self._carry_out(plan)
        except ExceptionGroup as errors:
            raise _first(errors) from errors

    async def _carry_out(self, plan: Sequence[Disturbance]) -> None:
        async with asyncio.TaskGroup() as running:
            for number, disturbance in enumerate(plan, 1):
                await asyncio.sleep(disturbance.pause)
                victim = await self._victim(disturbance)
                if any(event.recovery is None for event in self.events):
                    return
                self._disturbed.add(victim)
                running.create_task(self._disturb(disturbance.kind, victim, f"{number}/{len(plan)}"))

    async def _victim(self, disturbance: Disturbance) -> str:
        least = min(self._havoc.min_usable or len(self._ranks), len(self._ranks))
        until = time.monotonic() + self._havoc.recovery_timeout
        while True:
            left = await self._view.usable() & self._ranks - self._disturbed
            running = [rank for rank in await self._target.engines() if rank in left]
            if len(running) >= least or any(event.recovery is None for event in self.events):
                return disturbance.victim(running or sorted(self._ranks))
            if self._disturbed:  # those have a limit of their own
                until = time.monotonic() + self._havoc.recovery_timeout
            elif time.monotonic() > until:
                seconds = f"{self._havoc.recovery_timeout:g} s"
                raise CommandFailed(f"fewer than {least} engines have taken requests for {seconds}")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _disturb(self, kind: DisturbanceKind, rank: str, number: str) -> None:
        at = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            disturbed = tasks.create_task(self._target.disturb(kind, rank))
            recovery = await self._view.recovery({rank}, disturbed, self._havoc.recovery_timeout)
            disturbed.cancel()
        self._disturbed.discard(rank)
        self.events.append(Event(kind, rank, at, recovery))
        ended = "not back" if recovery is None else f"back after {recovery:.1f} s"
        self._note(f"{number} {kind} of engine {rank}: {ended}")


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
