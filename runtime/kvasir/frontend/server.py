"""The frontend's process.

SIGTERM and SIGINT make it unready at once. It accepts requests for `shutdown_delay` more, then closes idle
connections one by one. Running requests may finish within `drain_timeout`; the rest ends with an error. A second
signal skips the waiting.
"""

import asyncio
import contextlib
import gc
import logging
import math
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from kvasir.client.async_llm import AsyncLLM
from kvasir.client.input.chat_templates import ChatTemplates
from kvasir.config.frontend_settings import FrontendConfig
from kvasir.frontend.app import create_app
from kvasir.frontend.http.access import Access
from kvasir.frontend.http.auth import ApiKeys
from kvasir.frontend.http.bodies.body_memory import UploadQueue
from kvasir.frontend.http.connections.acceptor import Acceptor, listen
from kvasir.frontend.http.connections.connection import Connection
from kvasir.frontend.http.connections.disconnection import close_idle
from kvasir.frontend.http.connections.tls import Tls
from kvasir.frontend.http.connections.transports import Receiver
from kvasir.frontend.http.refusals import Refusals
from kvasir.frontend.parsers import Parsers
from kvasir.frontend.service import Service, served_names
from kvasir.frontend.status import FrontendStatus
from kvasir.frontend.telemetry.log_config import apply_log_config
from kvasir.frontend.telemetry.log_stats import PeriodicStats, stat_loggers
from kvasir.frontend.telemetry.metrics import Metrics
from kvasir.hub.located_model import read_model
from kvasir.hub.tokenizer import load_tokenizer
from kvasir.hub.tokenizer_files import tokenizer_info
from kvasir.process.failures import end, failure_of, log_failure
from kvasir.process.listening import BACKLOG, remove_socket_file, url_of
from kvasir.process.ops_server import OpsServer
from kvasir.process.process_setup import raise_open_files_limit, return_large_allocations, set_process_title
from kvasir.process.words import count
from kvasir_contract.logs import setup_logging

if TYPE_CHECKING:
    from kvasir.frontend.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# so that a request on its way to an idle connection still gets its answer
SETTLE_SECONDS = 0.3
FLUSH_SECONDS = 1.0
"""Time for errors of interrupted requests to reach clients."""
# after which a busy thread yields to the event loop; Python's default is 5 ms per wake-up
SWITCH_SECONDS = 0.0005
# New objects between two collections. Each visits the objects of all requests, which leave no cycles behind.
GC_OBJECTS = 10_000
# more than the 60 s of load balancers, which must close first
KEEP_ALIVE = 75


def run_frontend(config: FrontendConfig) -> int:
    setup_logging("frontend", config.process.log_level, config.process.log_format)
    set_process_title("frontend")
    raise_open_files_limit()
    return_large_allocations()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        if config.server.log_config_file is not None:
            apply_log_config(config.server.log_config_file)
        _run(config)
    except Exception as error:
        log_failure(log, error, "the frontend failed")
        return end(failure_of(error))
    return end(None)


def _run(config: FrontendConfig) -> None:
    status = FrontendStatus()
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(config.server)))
        unserved = stack.enter_context(contextlib.ExitStack())
        if config.server.fd is None:
            unserved.callback(remove_socket_file, listener)
        if config.ops.ops_port is not None:
            stack.enter_context(contextlib.closing(OpsServer(config.ops, status, status.metrics, status)))
        service = build_service(config)
        unserved.pop_all()  # the server removes it
        # exclude these permanent objects from later collections
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_OBJECTS)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(service, config, listener, status))


def build_service(config: FrontendConfig) -> Service:
    access = Access(ApiKeys.of_clients(config.server), ApiKeys.of_administrators(config.server))
    model, metrics = read_model(config.model), Metrics(served_names(config)[0])
    templates = ChatTemplates.load(model.tokenizer_path, config.chat)
    tokenizer = load_tokenizer(model.tokenizer_path)
    chat = config.chat
    parsers = Parsers.choose(
        templates.text, tokenizer, chat.tool_call_parser, chat.reasoning_parser, chat.parser_plugins
    )
    llm = AsyncLLM(config, model, tokenizer, templates, observer=metrics)
    metrics.report_engines(
        lambda: llm.engines,
        lambda: llm.live_requests,
        lambda: llm.held_requests,
        lambda: llm.waiting_requests,
    )
    service = Service(config, llm, access, metrics, parsers, _tracing(config))
    service.load_adapters(config.adapters)
    if config.server.enable_tokenizer_info_endpoint:
        service.tokenizer_info = tokenizer_info(model.tokenizer_path, templates.text)
    return service


def _tracing(config: FrontendConfig) -> "Tracing | None":
    if config.server.otlp_traces_endpoint is None:
        return None
    from kvasir.frontend.telemetry.tracing import Tracing

    return Tracing(config.server.otlp_traces_endpoint)


async def serve(service: Service, config: FrontendConfig, listener: socket.socket, status: FrontendStatus) -> None:
    await service.llm.start()
    status.serve(service)
    try:
        await Server(service, config, status).serve([listener])
    finally:
        await service.llm.close()
        if service.tracing is not None:
            await asyncio.to_thread(service.tracing.close)


class Server(uvicorn.Server):
    """uvicorn, with Kvasir's shutdown and without ten wake-ups a second."""

    def __init__(self, service: Service, config: FrontendConfig, status: FrontendStatus) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=partial(  # type: ignore[arg-type]  # called as a class, and no more
                    Connection,
                    config.server.upload_timeout,
                    config.server.stalled_reader_timeout,
                    UploadQueue(),
                    Refusals(logged=config.server.log_requests),
                ),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=config.server.uvicorn_log_level,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # any client could forge them
                timeout_keep_alive=KEEP_ALIVE,
            )
        )
        self._service = service
        self._status = status
        self._tls = Tls.of(config.tls)
        self._stats = PeriodicStats(
            stat_loggers(service.model_names[0], line=not config.server.disable_log_stats),
            service.metrics.totals,
            lambda: service.llm.engines,
            lambda: service.llm.live_requests,
        )
        # an inherited socket belongs to its creator
        self._removes_socket_file = config.server.fd is None
        self._shutdown_delay = config.server.shutdown_delay
        self._drain_timeout = config.process.drain_timeout
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._connection_lost = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.stop, number.name)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        context = None if self._tls is None else self._tls.context
        self.servers = [
            Acceptor(each, BACKLOG, self._connection, context)  # type: ignore[misc]  # all that uvicorn calls
            for each in sockets or []
        ]
        scheme = "http" if self._tls is None else "https"
        for listener in sockets or []:
            log.info("listening on %s (model %s)", url_of(listener, scheme), ", ".join(self._service.model_names))

    def _connection(self) -> asyncio.BufferedProtocol:
        connection = self.config.http_protocol_class(  # type: ignore[call-arg]  # one of uvicorn's
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return Receiver(connection, self._connection_lost.set)

    async def main_loop(self) -> None:
        await self._until_set(self._stop, None)
        await self._until_set(self._stop_now, self._shutdown_delay)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._removes_socket_file:
            for listener in sockets or []:
                remove_socket_file(listener)
        for server in self.servers:
            server.close()
        if self.server_state.connections or self._are_starting():  # they may have unread requests
            await self._until_set(self._stop_now, SETTLE_SECONDS)
        interrupting = asyncio.create_task(self._interrupt())
        await self._close_idle()
        await self._end_connections()
        interrupting.cancel()
        log.info("stopped")

    def stop(self, cause: str) -> None:
        """Begin to stop. The second call stops at once."""
        if self._stop.is_set():
            log.warning("%s again: stopping at once", cause)
            self._stop_now.set()
            return
        log.info(
            "%s: accepting requests for %g s more, %d are running and may finish within %g s",
            cause,
            self._shutdown_delay,
            len(self._service.live),
            self._drain_timeout,
        )
        self._service.stopping = True
        self._stop.set()

    async def _close_idle(self) -> None:
        connections = list(self.server_state.connections)
        closing = asyncio.create_task(close_idle(connections))  # type: ignore[arg-type]  # of class Connection
        stopping = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait((closing, stopping), return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        stopping.cancel()

    async def _end_connections(self) -> None:
        # uvicorn's own shutdown sleeps for 0.1 s, and then looks ten times a second
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections:
            self._connection_lost.clear()
            await self._connection_lost.wait()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks)

    def _are_starting(self) -> bool:
        return any(server.is_starting for server in self.servers)  # type: ignore[attr-defined]  # of class Acceptor

    async def _interrupt(self) -> None:
        await self._until_set(self._stop_now, self._drain_timeout)
        if self._service.live:
            log.warning("%s interrupted", count(len(self._service.live), "request"))
        self._service.live.interrupt()
        await asyncio.sleep(FLUSH_SECONDS)
        # for clients that do not read; handshakes may still open connections
        while True:
            for connection in list(self.server_state.connections):
                connection.transport.abort()
            await asyncio.sleep(FLUSH_SECONDS)

    async def _until_set(self, event: asyncio.Event, seconds: float | None) -> None:
        """Wait for the event, at most this long, with the checks of every second."""
        loop = asyncio.get_running_loop()
        end = math.inf if seconds is None else loop.time() + seconds
        while not event.is_set() and (left := end - loop.time()) > 0:
            await self.on_tick(0)
            self._status.beat()
            self._stats.tick()
            self._service.refresh_adapters()
            self._service.measure_load()
            if self._tls is not None:
                self._tls.refresh()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), min(left, 1.0))
