import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from service.running import process

HEADER = "X-data-parallel-rank"
FIELDS = {"prompt": "Kvasir is", "temperature": 1.0, "seed": 4, "max_tokens": 12, "ignore_eos": True}


@contextmanager
def rank_service(rank: int) -> Iterator[str]:
    """A frontend and the engine of one rank; yields the frontend's URL."""
    with ExitStack() as stack:
        link = f"ipc://{stack.enter_context(tempfile.TemporaryDirectory(prefix='kvs-', dir='/tmp'))}/link"
        common = ("demo://", "--link", link, "--ops-port", "0")
        frontend = ("frontend", *common, "--port", "0", "--host", "127.0.0.1", "--shutdown-delay", "0")
        url = stack.enter_context(process(*frontend, until=r"listening on (http://\S+)"))[1]
        engine = ("engine", *common, "--data-parallel-rank", str(rank), "--kv-cache-memory-bytes", "16Mi")
        stack.enter_context(process(*engine, "--device", "cpu", until=r"Ready after"))
        yield url


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    with ExitStack() as stack:
        yield [stack.enter_context(rank_service(rank)) for rank in (0, 1)]


def ask(url: str, **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json=FIELDS, headers=headers, timeout=60)


def ranks(url: str) -> list[int]:
    engines = httpx.get(f"{url}/health").json()["engines"]
    return [engine["rank"] for engine in engines]


def test_each_service_has_its_own_rank(urls: list[str]) -> None:
    assert [ranks(url) for url in urls] == [[0], [1]]


def test_every_rank_answers_the_same_with_and_without_its_rank(urls: list[str]) -> None:
    texts = set()
    for rank, url in enumerate(urls):
        for headers in ({}, {HEADER: str(rank)}):
            texts.add(ask(url, **headers).raise_for_status().json()["choices"][0]["text"])
    assert len(texts) == 1


def test_a_request_at_the_wrong_rank_is_refused(urls: list[str]) -> None:
    for rank, url in enumerate(urls):
        response = ask(url, **{HEADER: str(1 - rank)})
        assert response.status_code == 400
        assert f"this service has rank {rank}:" in response.json()["error"]["message"]
