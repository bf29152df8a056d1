"""Run a service on this machine for one job, such as a batch."""

import asyncio
from collections.abc import Awaitable, Callable

from kvasir.local.run import LocalService
from kvasir.local.supervision.screen import LastingScreen, PlainScreen
from kvasir.local.supervision.supervisor import Supervisor

# Gets the base URL.
Job = Callable[[str], Awaitable[None]]


def run_job(service: LocalService, job: Job) -> None:
    """Return when the job has returned and every process has ended.

    Ctrl-C and SIGTERM cancel the job and raise KeyboardInterrupt. Raises the job's errors, and ConfigError if a
    process rejects its settings. Other processes that end are restarted.
    """
    asyncio.run(_run(service, job))


async def _run(service: LocalService, job: Job) -> None:
    screen = _JobScreen()
    working = asyncio.create_task(_work(service, job, screen))

    def ending() -> None:
        service.place.stop_listening()
        working.cancel()

    supervisor = Supervisor(
        service.processes, logs={service.place.service: service.place.logs}, screen=screen, ending=ending
    )
    screen.note(f"Logs of {service.place.service}: {service.place.logs}")
    supervising = asyncio.create_task(supervisor.run())
    await asyncio.wait({working, supervising}, return_when=asyncio.FIRST_COMPLETED)
    if not supervising.done() and not working.cancelled():
        supervisor.end()
    await supervising
    try:
        await working
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _work(service: LocalService, job: Job, screen: "_JobScreen") -> None:
    await screen.ready.wait()
    await job(service.place.url)


class _JobScreen(LastingScreen):
    """Prints phases as lines, without a welcome."""

    def __init__(self) -> None:
        super().__init__(PlainScreen([], several=False))
        # every process was ready once
        self.ready = asyncio.Event()

    def serving(self) -> None:
        self.ready.set()
