"""The small HTTP port of every process for probes, status and metrics; it never carries a prompt.

    /health/live   200 unless the process is stuck or has failed, else 503 with the cause
    /health/ready  200 while the process accepts requests, else 503 with the cause
    /status        a StatusReport
    /metrics       Prometheus text
    /demand        frontends only: waits until a request is live, then responds as /status
    /gate/close    frontends only, POST: holds all requests until /gate/open; responds as /status

Each request gets a short-lived thread, so neither a long step nor a busy event loop delays a probe.
"""

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kvasir.config.options import ConfigError, flag_of
from kvasir.config.process_settings import OpsConfig
from kvasir.process.listening import listening_socket, url, url_of
from kvasir_contract.endpoints import (
    CLOSE_GATE_PATH,
    DEMAND_PATH,
    LIVE_PATH,
    MAX_DEMAND_WAIT_SECONDS,
    METRICS_PATH,
    OPEN_GATE_PATH,
    OPS_PORT,
    READY_PATH,
    STATUS_PATH,
)
from kvasir_contract.status_report import StatusReport

log = logging.getLogger(__name__)

BACKLOG: Final = 16
RETRY_SECONDS: Final = 0.05

MAX_WAITERS: Final = 8  # each waiting GET /demand keeps a thread

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_Answer = tuple[HTTPStatus, str, bytes]


class ProcessStatus(Protocol):
    def trouble(self) -> str | None:
        """Return why the process should be restarted."""

    def unready_reason(self) -> str | None:
        """Return why requests should go elsewhere."""

    def report(self) -> StatusReport: ...


class DemandControl(Protocol):
    def wait_for_demand(self, seconds: float) -> None:
        """Return when a request is live, at the latest after this time."""

    def set_gate(self, *, closed: bool) -> bool:
        """Return False if the gate cannot change now."""


class OpsServer:
    """Listens from construction on. Raises ConfigError if it cannot."""

    def __init__(
        self,
        config: OpsConfig,
        status: ProcessStatus,
        metrics: Callable[[], bytes],
        demand: DemandControl | None = None,
    ) -> None:
        port = OPS_PORT if config.ops_port is None else config.ops_port
        try:
            listener = listening_socket(config.ops_host, port, BACKLOG)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot serve probes and metrics on {url(config.ops_host, port).removeprefix('http://')}: "
                f"{getattr(error, 'strerror', None) or error}; choose another {flag_of('ops_port')} "
                f"(0 takes any free one) or {flag_of('ops_host')}"
            ) from error
        self._server = _Server(listener, _Pages(status, metrics, demand))
        self.url = url_of(listener)
        self.port = int(listener.getsockname()[1])
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="ops", daemon=True)
        self._thread.start()
        log.info("probes and metrics on %s", self.url)

    def close(self) -> None:
        self._closing = True
        try:  # wakes the thread without polling
            self._server.socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("could not wake the ops thread: %s", error)
        self._thread.join(timeout=1)
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()


class _Pages:
    # path → answer, by method

    def __init__(self, status: ProcessStatus, metrics: Callable[[], bytes], demand: DemandControl | None) -> None:
        def report(_: str = "") -> _Answer:
            return HTTPStatus.OK, _JSON, status.report().to_json()

        self._read: dict[str, Callable[[str], _Answer]] = {
            LIVE_PATH: lambda _: _probe(status.trouble()),
            READY_PATH: lambda _: _probe(status.unready_reason()),
            STATUS_PATH: report,
            METRICS_PATH: lambda _: (HTTPStatus.OK, CONTENT_TYPE_LATEST, metrics()),
        }
        self._write: dict[str, Callable[[str], _Answer]] = {}
        if demand is None:
            return
        waiters = threading.BoundedSemaphore(MAX_WAITERS)

        def wait(query: str) -> _Answer:
            seconds = _timeout(query)
            if seconds is None:
                message = f"use ?timeout= with 0 to {MAX_DEMAND_WAIT_SECONDS:g} seconds\n"
                return HTTPStatus.BAD_REQUEST, _TEXT, message.encode()
            if not waiters.acquire(blocking=False):
                return report()
            try:
                demand.wait_for_demand(seconds)
            finally:
                waiters.release()
            return report()

        def gate(_: str, *, closed: bool) -> _Answer:
            if not demand.set_gate(closed=closed):
                return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"the event loop does not respond\n"
            return report()

        self._read[DEMAND_PATH] = wait
        self._write = {
            CLOSE_GATE_PATH: partial(gate, closed=True),
            OPEN_GATE_PATH: partial(gate, closed=False),
        }

    def read(self, path: str) -> _Answer:
        return _answer(self._read, path)

    def write(self, path: str) -> _Answer:
        return _answer(self._write, path)


def _answer(pages: dict[str, Callable[[str], _Answer]], target: str) -> _Answer:
    path, _, query = target.partition("?")
    page = pages.get(path)
    if page is None:
        return HTTPStatus.NOT_FOUND, _TEXT, f"no such page; there are {', '.join(pages) or 'none'}\n".encode()
    return page(query)


def _timeout(query: str) -> float | None:
    name, _, value = query.partition("=")
    try:
        seconds = float(value)
    except ValueError:
        return None
    valid = name == "timeout" and math.isfinite(seconds) and 0 <= seconds <= MAX_DEMAND_WAIT_SECONDS
    return seconds if valid else None


def _probe(trouble: str | None) -> _Answer:
    if trouble is not None:
        return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{trouble}\n".encode()
    return HTTPStatus.OK, _TEXT, b"ok\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, pages: _Pages) -> None:
        super().__init__(listener.getsockname()[:2], partial(_Handler, pages), bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(RETRY_SECONDS)  # without a free descriptor the listener stays readable: do not spin
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("ops request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds for a client's request

    def __init__(self, pages: _Pages, *args: Any) -> None:
        self._pages = pages
        super().__init__(*args)

    def do_GET(self) -> None:
        self._respond(self._pages.read(self.path))

    def do_HEAD(self) -> None:
        self._respond(self._pages.read(self.path), with_body=False)

    def do_POST(self) -> None:
        self._respond(self._pages.write(self.path))

    def _respond(self, answer: _Answer, with_body: bool = True) -> None:
        code, content_type, body = answer
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
