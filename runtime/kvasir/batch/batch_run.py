"""Run a batch: send the unanswered requests, several at the same time."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from kvasir.batch import batch_input
from kvasir.batch.batch_input import BatchRequest, Survey
from kvasir.batch.batch_output import AnswerFile
from kvasir.batch.delivery import BatchDelivery, KeyRefused, NotDelivered, Patience, message_of
from kvasir.config.options import CommandFailed, ConfigError

CONNECT_SECONDS: Final = 10.0


@dataclass(frozen=True)
class BatchOptions:
    concurrency: int
    patience: Patience
    timeout: float


@dataclass
class Figures:
    succeeded: int = 0
    failed: int = 0
    # an unknown URL, or no attempt was accepted
    unsent: int = 0

    @property
    def answered(self) -> int:
        return self.succeeded + self.failed


class BatchRun:
    """One run of a batch.

    `report` gets a line number and the reason why there is no good answer; `progress` gets the number of answers
    and requests.
    """

    def __init__(
        self,
        path: Path,
        found: Survey,
        output: AnswerFile,
        options: BatchOptions,
        report: Callable[[int, str], None],
        progress: Callable[[int, int], None],
    ) -> None:
        self.figures = Figures()
        self._path = path
        self._found = found
        self._output = output
        self._options = options
        self._report = report
        self._progress = progress
        # when the server answered anything
        self._last_answer = 0.0

    async def run(self, url: str, api_key: str | None, *, by_proxy: bool = True) -> None:
        """Send the requests; return when each has an answer or was reported.

        `by_proxy`: use the environment's proxy. Raises ConfigError for a rejected key, CommandFailed for an
        unreachable server.
        """
        size = self._options.concurrency
        limits = httpx.Limits(max_connections=size, max_keepalive_connections=size)
        timeout = httpx.Timeout(self._options.timeout, connect=CONNECT_SECONDS, pool=None)
        headers = {b"Authorization": f"Bearer {api_key}".encode()} if api_key else {}
        async with httpx.AsyncClient(
            base_url=url, headers=headers, limits=limits, timeout=timeout, trust_env=by_proxy
        ) as http:
            paths = await _paths(http, url)
            todo = batch_input.requests(self._path, self._found, self._output.answered)
            delivery = BatchDelivery(http, self._options.patience)
            self._show()
            await self._all(todo, delivery, paths)

    async def _all(
        self, todo: Iterator[tuple[int, BatchRequest]], delivery: BatchDelivery, paths: frozenset[str] | None
    ) -> None:
        async def work() -> None:
            for number, request in todo:  # shared: each takes the next line
                await self._one(number, request, delivery, paths)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._options.concurrency):
                    group.create_task(work())
        except ExceptionGroup as errors:  # several may fail for one reason
            raise errors.exceptions[0] from None

    async def _one(
        self, number: int, request: BatchRequest, delivery: BatchDelivery, paths: frozenset[str] | None
    ) -> None:
        if paths is not None and request.url.partition("?")[0] not in paths:
            self._unsent(number, f"{request.url[:80]!r} is not an endpoint of this server: use {_choices(paths)}")
            return
        started = time.monotonic()
        try:
            response = await delivery.deliver(request)
        except KeyRefused as error:
            raise ConfigError(f"the server refuses the API key ({error}): give another --api-key") from None
        except NotDelivered as error:
            if not error.reached and self._last_answer < started:
                raise CommandFailed(f"the server does not answer any more ({error})") from None
            self._unsent(number, f"not answered: {error}")
            return
        self._last_answer = time.monotonic()
        self._output.write(request.custom_id, response)
        if response.succeeded:
            self.figures.succeeded += 1
        else:
            self.figures.failed += 1
            self._report(number, f"{response.status_code}: {message_of(response.body)}")
        self._show()

    def _unsent(self, number: int, reason: str) -> None:
        self.figures.unsent += 1
        self._report(number, reason)

    def _show(self) -> None:
        self._progress(self._found.answered + self.figures.answered, self._found.requests)


async def _paths(http: httpx.AsyncClient, url: str) -> frozenset[str] | None:
    """Return the paths that accept POST, or None if unknown. Raises CommandFailed."""
    try:
        answer = await http.get("/openapi.json")
    except httpx.RequestError as error:
        raise CommandFailed(f"no answer from {url}: {error}. Check the URL, or give --model instead") from error
    try:
        described: dict[str, Any] = answer.json()["paths"]
        return frozenset(path for path, methods in described.items() if "post" in methods) or None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _choices(paths: frozenset[str]) -> str:
    generating = sorted(path for path in paths if path.startswith("/v1/") and "{" not in path)
    return ", ".join(generating or sorted(paths))
