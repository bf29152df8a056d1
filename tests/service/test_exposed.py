"""The Ingress of a service in a real proxy: silent streams, unbuffered tokens, long prompts and a path."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from debian import NoProgram
from kvasir_operator.resources.exposure import exposure
from loopback_server import LoopbackHandler, LoopbackServer, serving
from operator_facts import service as inference_service
from service.ingress_nginx import program, proxied
from service.running import Service, running

SILENT_SECONDS = 1.5  # above the 1 s of the proxy
BODY = b"x" * 3 * 2**20


class Upstream(LoopbackHandler):
    """Sends an event, is silent, and sends the last one when the client has seen the first."""

    seen = threading.Event()

    def do_POST(self) -> None:
        size = len(self.body())
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(f"data: {size}\n\n".encode())
        self.wfile.flush()
        last = "[DONE]" if Upstream.seen.wait(5) else "late"
        time.sleep(SILENT_SECONDS)
        self.wfile.write(f"data: {last}\n\n".encode())
        self.close_connection = True


@pytest.fixture(autouse=True, scope="module")
def _nginx_is_here() -> None:
    try:
        program()
    except NoProgram as missing:
        pytest.skip(str(missing))


def ingress(**fields: Any) -> dict[str, Any]:
    found = exposure(inference_service(expose={"host": "llm.example.com", **fields}))
    assert found is not None
    return found


def events(url: str, body: bytes) -> Iterator[str]:
    with httpx.stream("POST", url, content=body, timeout=10) as answer:
        assert answer.status_code == 200, answer.status_code
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")


def test_a_silent_stream_outlives_the_proxys_timeout(tmp_path: Path) -> None:
    with serving(LoopbackServer(Upstream)) as upstream, proxied(upstream.url, tmp_path, ingress()) as url:
        Upstream.seen.clear()
        found = events(url, b"x")
        assert next(found) == "1"  # the proxy has not buffered it until the end
        Upstream.seen.set()
        assert list(found) == ["[DONE]"]


def test_without_the_annotations_the_stream_breaks(tmp_path: Path) -> None:
    """The test above fails without the annotations."""
    with serving(LoopbackServer(Upstream)) as upstream, proxied(upstream.url, tmp_path, None) as url:
        with pytest.raises(httpx.RemoteProtocolError):
            list(events(url, b"x"))
        with pytest.raises(AssertionError, match="413"):
            list(events(url, BODY))


def test_a_long_prompt_passes(tmp_path: Path) -> None:
    with serving(LoopbackServer(Upstream)) as upstream, proxied(upstream.url, tmp_path, ingress()) as url:
        assert next(events(url, BODY)) == str(len(BODY))


@pytest.fixture(scope="module")
def below_a_path() -> Iterator[Service]:
    with running(
        "serve", "demo://", "--port", "0", "--served-model-name", "demo", "--threads", "1", "--root-path", "/demo"
    ) as found:
        yield found


@pytest.mark.parametrize("is_stripped", [False, True])
def test_a_service_below_a_path_answers(below_a_path: Service, tmp_path: Path, is_stripped: bool) -> None:
    """Some controllers remove the prefix, and others do not."""
    server = f"http://{urlsplit(below_a_path.url).netloc}"
    upstream = f"{server}/" if is_stripped else server
    with proxied(upstream, tmp_path, ingress(path="/demo"), "/demo/") as url:
        chat = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True}
        with httpx.stream("POST", f"{url}/demo/v1/chat/completions", json=chat, timeout=30) as answer:
            lines = [line for line in answer.iter_lines() if line.startswith("data: ")]
        assert answer.status_code == 200
        assert lines[-1] == "data: [DONE]"
