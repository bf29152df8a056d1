"""The small HTTP port of every process for probes, status and metrics; it never carries a prompt.

    /health/live   200 unless the process is stuck or has failed, else 503 with the cause
    /health/ready  200 while the process accepts requests, else 503 with the cause
    /status        a StatusReport
    /metrics       Prometheus text

It has threads of its own, so that neither a long step nor a busy event loop delays a probe: one waits in accept(),
and each request gets a short-lived thread.
"""

import logging
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
from kvasir.config.settings import OpsConfig
from kvasir.listening import listening_socket, url, url_of
from kvasir_contract.endpoints import LIVE_PATH, METRICS_PATH, OPS_PORT, READY_PATH, STATUS_PATH
from kvasir_contract.status_report import StatusReport

log = logging.getLogger(__name__)

BACKLOG: Final = 16
RETRY_SECONDS: Final = 0.05
"""Pause after a connection that could not be accepted."""

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_Answer = tuple[HTTPStatus, str, bytes]


class ProcessStatus(Protocol):
    """What the pages show; called by the server's threads."""

    def trouble(self) -> str | None:
        """Return why the process should be restarted."""

    def unready_reason(self) -> str | None:
        """Return why requests should go elsewhere."""

    def report(self) -> StatusReport: ...


class OpsServer:
    """Listens from construction on. Raises ConfigError if it cannot."""

    def __init__(self, config: OpsConfig, status: ProcessStatus, metrics: Callable[[], bytes]) -> None:
        port = OPS_PORT if config.ops_port is None else config.ops_port
        try:
            listener = listening_socket(config.ops_host, port, BACKLOG)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot serve probes and metrics on {url(config.ops_host, port).removeprefix('http://')}: "
                f"{getattr(error, 'strerror', None) or error}; choose another {flag_of('ops_port')} "
                f"(0 takes any free one) or {flag_of('ops_host')}"
            ) from error
        self._server = _Server(listener, _Pages(status, metrics))
        self.url = url_of(listener)
        self.port = int(listener.getsockname()[1])
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="ops", daemon=True)
        self._thread.start()
        log.info("probes and metrics on %s", self.url)

    def close(self) -> None:
        self._closing = True
        try:  # wakes the thread: it sleeps until a connection comes, without a polling interval
            self._server.socket.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            log.debug("could not wake the ops thread: %s", error)
        self._thread.join(timeout=1)
        self._server.server_close()

    def _serve(self) -> None:
        while not self._closing:
            self._server.handle_request()


class _Pages:
    """Path → answer."""

    def __init__(self, status: ProcessStatus, metrics: Callable[[], bytes]) -> None:
        self._by_path: dict[str, Callable[[], _Answer]] = {
            LIVE_PATH: lambda: _probe(status.trouble()),
            READY_PATH: lambda: _probe(status.unready_reason()),
            STATUS_PATH: lambda: (HTTPStatus.OK, _JSON, status.report().to_json()),
            METRICS_PATH: lambda: (HTTPStatus.OK, CONTENT_TYPE_LATEST, metrics()),
        }

    def answer(self, path: str) -> _Answer:
        page = self._by_path.get(path.partition("?")[0])
        if page is None:
            return HTTPStatus.NOT_FOUND, _TEXT, f"no such page; there are {', '.join(self._by_path)}\n".encode()
        return page()


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
            time.sleep(RETRY_SECONDS)  # without a free file descriptor the listener stays readable: do not spin
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("ops request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = 5  # seconds for a client to send its request

    def __init__(self, pages: _Pages, *args: Any) -> None:
        self._pages = pages
        super().__init__(*args)

    def do_GET(self) -> None:
        self._respond()

    def do_HEAD(self) -> None:
        self._respond(with_body=False)

    def _respond(self, with_body: bool = True) -> None:
        code, content_type, body = self._pages.answer(self.path)
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
