"""The engine's own small HTTP port: probes, status and metrics; it never carries a prompt.

    /health/live   200 while the start-up progresses and steps advance, else 503 with the reason
    /health/ready  200 while the engine takes requests
    /status        JSON: phase, progress of loading, message, incarnation, rank, times of the start-up, current step
    /metrics       Prometheus text

Started by process.py before anything slow. One thread waits in accept(); each request gets a short-lived thread.
"""

import json
import logging
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kvasir.config.options import ConfigError, flag_of
from kvasir.config.settings import OpsConfig
from kvasir.engine.status import EngineStatus
from kvasir.engine.step_trace import StepTrace
from kvasir.engine.watchdog import describe_batch
from kvasir_contract.endpoints import LIVE_PATH, METRICS_PATH, READY_PATH, STATUS_PATH

log = logging.getLogger(__name__)

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_Answer = tuple[HTTPStatus, str, bytes]


class OpsServer:
    """Listens from construction on. Raises ConfigError where it cannot."""

    def __init__(self, config: OpsConfig, status: EngineStatus, registry: CollectorRegistry) -> None:
        self._pages = _Pages(status, registry)
        try:
            self._server = _Server(config, self._pages)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot serve probes and metrics on {config.ops_host}:{config.ops_port}: "
                f"{getattr(error, 'strerror', None) or error}; choose another {flag_of('ops_port')} "
                f"(0 takes any free one) or {flag_of('ops_host')}"
            ) from error
        self.host = str(self._server.server_address[0])
        self.port = int(self._server.server_address[1])
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="ops", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        try:  # a connection wakes the thread: it sleeps in accept(), without a polling interval
            socket.create_connection((self.host, self.port), timeout=1).close()
        except OSError as error:
            log.debug("could not wake the ops thread: %s", error)
        self._thread.join(timeout=1)
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()


class _Pages:
    """Path → answer."""

    def __init__(self, status: EngineStatus, registry: CollectorRegistry) -> None:
        self._status = status
        self._registry = registry
        self._by_path = {
            LIVE_PATH: self._live,
            READY_PATH: self._ready,
            STATUS_PATH: self._state,
            METRICS_PATH: self._metrics,
        }

    def answer(self, path: str) -> _Answer:
        page = self._by_path.get(path.partition("?")[0])
        if page is None:
            return HTTPStatus.NOT_FOUND, _TEXT, f"no such page; there are {', '.join(self._by_path)}\n".encode()
        return page()

    def _live(self) -> _Answer:
        trouble = self._status.trouble()
        if trouble is not None:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{trouble}\n".encode()
        return HTTPStatus.OK, _TEXT, b"ok\n"

    def _ready(self) -> _Answer:
        if not self._status.ready:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"not ready: {self._status.phase}\n".encode()
        return HTTPStatus.OK, _TEXT, b"ok\n"

    def _state(self) -> _Answer:
        status, progress = self._status, self._status.progress
        state = {
            "phase": status.phase,
            "progress": None if progress is None else {"done": progress.done, "total": progress.total},
            "message": status.message,
            "incarnation": status.incarnation,
            "rank": status.rank,
            "startup_seconds": {phase: round(seconds, 3) for phase, seconds in status.startup_seconds.items()},
            "step": _step_of(status.trace),
        }
        return HTTPStatus.OK, _JSON, json.dumps(state).encode() + b"\n"

    def _metrics(self) -> _Answer:
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)


def _step_of(trace: StepTrace) -> dict[str, object] | None:
    """The step that runs now; None while there is none."""
    moment = trace.now
    if moment is None:
        return None
    return {
        "number": moment.step,
        "phase": moment.phase,
        "seconds": round(trace.clock() - moment.step_began, 3),
        "batch": describe_batch(moment.batch) if moment.batch is not None else "",
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, config: OpsConfig, pages: _Pages) -> None:
        self.pages = pages
        if ":" in config.ops_host:
            self.address_family = socket.AF_INET6
        super().__init__((config.ops_host, config.ops_port), _Handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own asks the DNS for a name that nobody reads

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("ops request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 5  # seconds for a client to send its request

    def do_GET(self) -> None:
        self._respond()

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def _respond(self, with_body: bool = True) -> None:
        code, content_type, body = self.server.pages.answer(self.path)
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
