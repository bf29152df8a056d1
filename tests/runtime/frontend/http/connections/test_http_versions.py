"""Clients that offer another version of HTTP, or use an older one, are served in a version that they support."""

import asyncio
import json
import re

import pytest

from runtime.frontend.harness import POST_JSON, Frontend
from runtime.frontend.http.connections.test_slow_clients import (
    answer_to,
    assert_endless_headers_are_refused,
    connect,
    connection_of,
)
from runtime.frontend.scripted import TIMEOUT

CLOSE = b"Connection: close\r\n"
BODY = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3}).encode()
JAVAS_OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
WEBSOCKET = (
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def post(more: bytes = JAVAS_OFFER, body: bytes = BODY) -> bytes:
    return POST_JSON + b"%sContent-Length: %d\r\n\r\n" % (more, len(body)) + body


CHUNKED = (POST_JSON + b"%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n") % (
    JAVAS_OFFER,
    len(BODY),
    BODY,
)
GET = b"GET /version HTTP/1.1\r\nHost: x\r\n%s\r\n" % JAVAS_OFFER


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    async with asyncio.timeout(TIMEOUT):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None, head
        return head, await reader.readexactly(int(length[1]))


def assert_completion(head: bytes, body: bytes) -> None:
    assert head.startswith(b"HTTP/1.1 200 "), body
    usage = json.loads(body)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 3)


@pytest.mark.parametrize("sent", [post(), CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("pieces", ["one piece", "head and body", "bytes"])
async def test_an_offer_of_http2_costs_no_request_its_body(frontend: Frontend, sent: bytes, pieces: str) -> None:
    head, end, body = sent.partition(b"\r\n\r\n")
    parts = {
        "one piece": [sent],
        "head and body": [head + end, body],
        "bytes": [sent[n : n + 1] for n in range(len(sent))],
    }[pieces]
    reader, writer = await connect(frontend)
    writer.write(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    await read_answer(reader)
    for part in parts * 2:  # on one connection
        connection_of(frontend).data_received(part)
    for _ in range(2):
        assert_completion(*await read_answer(reader))
    writer.close()


async def test_request_behind_an_offer_in_one_piece_is_served(frontend: Frontend) -> None:
    reader, writer = await connect(frontend)
    writer.write(GET + post() + post(b"") + CHUNKED + GET + post(CLOSE))
    bodies = [(await read_answer(reader))[1] for _ in range(6)]
    assert ["version" in json.loads(body) for body in bodies] == [True, False, False, False, True, False]
    assert [json.loads(body).get("object") for body in bodies].count("text_completion") == 4
    assert await reader.read() == b""
    writer.close()


async def test_a_request_that_offers_http2_and_closes_is_the_last(frontend: Frontend) -> None:
    offer = b"Upgrade: h2c\r\nConnection: close, upgrade\r\nHTTP2-Settings: AAMA\r\nX-Request-Id: mine\r\n"
    head, _, body = (await answer_to(frontend, post(offer))).partition(b"\r\n\r\n")
    assert_completion(head, body)
    assert b"connection: close" in head
    assert b"x-request-id: mine" in head


async def test_client_that_offers_http2_gets_100_continue(frontend: Frontend) -> None:
    reader, writer = await connect(frontend)
    sent = post(JAVAS_OFFER + b"Expect: 100-continue\r\n")
    writer.write(sent.removesuffix(BODY))
    async with asyncio.timeout(TIMEOUT):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(BODY)
    assert_completion(*await read_answer(reader))
    writer.close()


async def test_what_is_wrong_is_told_with_an_offer_as_without(frontend: Frontend) -> None:
    offered = CHUNKED.replace(b"chunked", b"gzip")
    for sent in (offered, offered.replace(JAVAS_OFFER, b"")):
        received = await answer_to(frontend, sent)
        assert received.startswith(b"HTTP/1.1 400 ")
        assert received.count(b"HTTP/1.1 4") == 1
        assert b'"bad_http"' in received


async def test_endless_headers_with_an_offer_are_refused(frontend: Frontend) -> None:
    await assert_endless_headers_are_refused(frontend, post().partition(b"Content-Length")[0])


async def test_a_websocket_is_told_what_the_path_says_to_any_get(frontend: Frontend) -> None:
    reader, writer = await connect(frontend)
    for path, status in ((b"/v1/realtime", b"404"), (b"/v1/completions", b"405")):
        writer.write(b"GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n" % (path, WEBSOCKET))
        head, body = await read_answer(reader)
        assert head.startswith(b"HTTP/1.1 %s " % status)
        assert json.loads(body)["error"]["message"]
    writer.close()


@pytest.mark.parametrize("keep_alive", [b"", b"Connection: keep-alive\r\n"])
async def test_stream_to_http_1_0_ends_with_its_connection(frontend: Frontend, keep_alive: bytes) -> None:
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3, "stream": True}).encode()
    received = await answer_to(frontend, post(keep_alive, body).replace(b"HTTP/1.1", b"HTTP/1.0"))
    head, _, events = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    *chunks, done, end = events.split(b"\n\n")
    assert (done, end) == (b"data: [DONE]", b"")
    assert all(json.loads(chunk.removeprefix(b"data: "))["object"] == "text_completion" for chunk in chunks)


async def test_an_answer_of_known_length_is_the_same_to_http_1_0(frontend: Frontend) -> None:
    received = await answer_to(frontend, post().replace(b"HTTP/1.1", b"HTTP/1.0"))
    head, _, body = received.partition(b"\r\n\r\n")
    assert_completion(head, body)
    assert b"content-length: %d\r\n" % len(body) in head
    received = await answer_to(frontend, b"HEAD /version HTTP/1.0\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"\r\n\r\n")
