"""Requests that break HTTP itself, and clients that hang up."""

import json
import random
import string
from typing import Final

from bench.malformed.valid import BODIES, Case, good_request, post, valid

PATHS: Final = (
    "/",
    "/v1",
    "/v1/models/%00",
    "/v1/models/..%2f",
    "/health",
    "/load",
    "/metrics",
    "/nothing",
    "/%ff",
)
METHODS: Final = ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PRI", "X", "get")


def wrong_route(rng: random.Random) -> Case:
    path = rng.choice((*PATHS, *(path for path, _ in BODIES), "/" + "".join(rng.choices(string.printable, k=30))))
    path = "".join(c for c in path if c.isprintable() and c != " ") + rng.choice(
        ("", "/", "?a=%zz", "?" + "b" * 5000)
    )
    method = rng.choice(METHODS)
    return Case("wrong route", f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())


def broken_http(rng: random.Random) -> Case:
    data = bytearray(good_request(rng))
    head = data.index(b"\r\n\r\n") + 4
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(head)
        match rng.randrange(3):
            case 0:
                data[place] = rng.randrange(256)
            case 1:
                data[place:place] = rng.choice((b"\r\n", b"\n", b"\x00", b": ", b" ", rng.randbytes(5)))
            case 2:
                del data[place : place + rng.randint(1, 6)]
    return Case("broken HTTP", bytes(data))


def odd_headers(rng: random.Random) -> Case:
    header = rng.choice(
        (
            "Transfer-Encoding: chunked",
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: -1",
            "Content-Length: 99999999999999999999",
            "Content-Encoding: gzip",
            "Expect: 100-continue",
            "Upgrade: websocket\r\nConnection: Upgrade",
            "X-Request-Id: " + "".join(rng.choices(string.printable[:95], k=rng.randint(0, 400))),
            "Authorization: " + rng.choice(("Bearer", "Bearer x", "Basic eA==", "\t")),
            "Cookie: " + "c" * rng.choice((10, 9_000, 70_000)),
            "Content-Type: application/json; charset=utf-16",
        )
    )
    _, body = valid(rng)
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{header}\r\n"
    if "Length" not in header and "Transfer" not in header:
        head += f"Content-Length: {len(data)}\r\n"
    return Case("odd headers", head.encode() + b"\r\n" + data)


def noise(rng: random.Random) -> Case:
    return Case("noise", rng.randbytes(rng.randint(0, 2000)), hang_up=True)


def cut_off(rng: random.Random) -> Case:
    data = good_request(rng)
    return Case("cut off", data[: rng.randrange(len(data))], hang_up=True)


def hangs_up(rng: random.Random) -> Case:
    path, body = valid(rng)
    return Case("hangs up", post(path, json.dumps(body).encode()), hang_up=True, read_first=rng.random() < 0.5)
