"""Run processes until Ctrl-C: a keeper for each, the signals, the screen."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from kvasir.config.options import ConfigError
from kvasir.local.supervision.keeper import Keeper, Shutdown, Timing
from kvasir.local.supervision.process_spec import ProcessSpec, ProcessState
from kvasir.local.supervision.screen import Screen
from kvasir_contract.phases import Phase


class ProcessFailed(ConfigError):
    """A process rejected its settings and ended for good; all others were ended too."""


class Supervisor:
    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        logs: Mapping[str, Path],
        screen: Screen,
        timing: Timing = Timing(),  # noqa: B008  (it is frozen)
        *,
        ending: Callable[[], None] = lambda: None,
    ) -> None:
        """Supervise these processes. `logs`: the directory of each service's log files, which are emptied.

        `ending` is called once, at the beginning of the end: no process is started after it.
        """
        self._specs = specs
        self._logs = logs
        self._screen = screen
        self._timing = timing
        self._ending = ending
        self._served = False

    async def run(self) -> None:
        """Run until a request to stop. Raises ProcessFailed if a process rejects its settings.

        Raises ConfigError, before any is started, if a log cannot be written.
        """
        self._shutdown = Shutdown()
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(limits=limits, trust_env=False) as http:
            self._keepers = [self._keeper(spec, http) for spec in self._specs]
            with self._signals():
                async with asyncio.TaskGroup() as tasks:
                    runs = [tasks.create_task(keeper.run()) for keeper in self._keepers]
                    await asyncio.gather(
                        *(run for spec, run in zip(self._specs, runs, strict=True) if not spec.ends_last)
                    )
                    self._shutdown.stop_last.set()
        for keeper in self._keepers:
            if keeper.state.phase == Phase.FAILED:
                raise ProcessFailed(f"{keeper.state.spec.name}: {keeper.state.message} (its log: {keeper.log})")

    def _keeper(self, spec: ProcessSpec, http: httpx.AsyncClient) -> Keeper:
        log = self._logs[spec.service] / f"{spec.name}.log"
        try:
            log.write_bytes(b"")
        except OSError as error:
            raise ConfigError(f"cannot write the log {log}: {error.strerror}; set XDG_STATE_HOME") from error
        return Keeper(spec, log, self._shutdown, http, self._changed, self._timing)

    def _changed(self, state: ProcessState) -> None:
        self._screen.changed(state)
        if state.phase == Phase.FAILED and not self._shutdown.stop.is_set():
            self._stop()
        if not self._served and all(keeper.state.ready for keeper in self._keepers):
            self._served = True
            self._screen.serving()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else started with nohup: keep running
            handled.append(signal.SIGHUP)
        for number in handled:
            loop.add_signal_handler(number, self.end)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def end(self) -> None:
        # A second request ends them without grace.
        if self._shutdown.stop.is_set():
            self._shutdown.kill.set()
            self._shutdown.stop_last.set()
            self._screen.note("Stopping all processes at once.")
        else:
            self._stop()
            self._screen.note("Ending: running requests are finished first. Press Ctrl-C again to stop at once.")

    def _stop(self) -> None:
        self._shutdown.stop.set()
        self._ending()
