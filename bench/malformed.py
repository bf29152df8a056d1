"""Requests that are wrong in every way a client could get them wrong, as bytes for a socket; used by fuzz.py.

`case(seed, number)` is always the same case for the same arguments. Around a third are bodies with a wrong field, a
third are broken in their bytes, the rest break HTTP itself or hang up.
"""

import copy
import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

MAX_TOKENS: Final = 4
USER: Final = {"role": "user", "content": "Who are you?"}
BODIES: Final[list[tuple[str, dict[str, Any]]]] = [
    (
        "/v1/completions",
        {"model": "demo", "prompt": "Who", "max_tokens": MAX_TOKENS, "temperature": 0.5, "seed": 1},
    ),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": MAX_TOKENS, "n": 2, "logprobs": 2, "echo": True}),
    ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": MAX_TOKENS, "stop": ["x", "yz"], "top_p": 0.5}),
    (
        "/v1/chat/completions",
        {"messages": [USER], "max_tokens": MAX_TOKENS, "logprobs": True, "top_logprobs": 2, "min_p": 0.1},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]}, USER],
            "max_completion_tokens": MAX_TOKENS,
            "stream_options": {"include_usage": True},
            "stream": True,
            "logit_bias": {"5": 1.0},
            "chat_template_kwargs": {"a": 1},
        },
    ),
    (
        "/v1/responses",
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}],
            "instructions": "Be brief.",
            "max_output_tokens": MAX_TOKENS,
            "truncation": "auto",
            "text": {"format": {"type": "text"}},
            "stream": True,
        },
    ),
    (
        "/v1/messages",
        {
            "system": [{"type": "text", "text": "a"}],
            "messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "I"}]}],
            "max_tokens": MAX_TOKENS,
            "stop_sequences": ["x"],
            "stream": True,
        },
    ),
    ("/v1/messages/count_tokens", {"messages": [USER], "system": "a"}),
    ("/tokenize", {"prompt": "Who", "add_special_tokens": True, "return_token_strs": True}),
    ("/tokenize", {"messages": [USER], "add_generation_prompt": False}),
    ("/detokenize", {"model": "demo", "tokens": [5, 6, 7]}),
]
BOUNDED: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Not taken away: without one an answer fills the context, which is valid but takes long."""
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
JUNK: Final[list[Any]] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 1e-320),
    *("", "x", "0", "NaN", "\x00", "é" * 300, "\U0001f642", "<|endoftext|>", "a" * 20_000, "{}", "null"),
    *([], [[]], [None], [1, "a"], ["a", 1], {}, {"a": {}}, {"": None}, [{}], list(range(300)), [[1] * 50] * 3),
]


@dataclass(frozen=True)
class Case:
    """The bytes that are sent over a new connection."""

    kind: str
    data: bytes
    hang_up: bool = False
    """Close the connection at once, or after the first bytes of an answer (`read_first`)."""
    read_first: bool = False


def case(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed}/{number}")
    make = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
    return make(rng)


# -------------------------------------------------------------------------------------------------- bodies


def wrong_field(rng: random.Random) -> Case:
    path, body = valid(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _spoil(rng, body)
    return Case("wrong field", post(path, json.dumps(body).encode()))


def _spoil(rng: random.Random, value: Any) -> None:
    """Change one thing somewhere in it."""
    if isinstance(value, list):
        if not value or rng.random() < 0.3:
            value.append(_junk(rng))
            return
        key: Any = rng.randrange(len(value))
    elif not value or rng.random() < 0.15:
        value[rng.choice(("", "x" * rng.randint(1, 300), "promt", "max_token", "nul\x00"))] = _junk(rng)
        return
    else:
        key = rng.choice(list(value))
    if isinstance(value[key], dict | list) and rng.random() < 0.6:
        _spoil(rng, value[key])
    elif rng.random() < 0.2 and key not in BOUNDED:
        del value[key]
    else:
        value[key] = _junk(rng)
        if value[key] is None and key in BOUNDED:
            value[key] = 0


def _junk(rng: random.Random) -> Any:
    """A copy: it may be spoilt further."""
    return copy.deepcopy(rng.choice(JUNK))


def broken_json(rng: random.Random) -> Case:
    path, body = valid(rng)
    data = bytearray(json.dumps(body).encode())
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                del data[place:]
            case 1:
                data[place:place] = rng.randbytes(rng.randint(1, 8))
            case 2:
                data[place : place + rng.randint(1, 9)] = b""
            case 3:
                data[place:place] = rng.choice(
                    (b"\\ud800", b"NaN", b"1e999", b"-", b"\xef\xbb\xbf", b"//", b"\x00")
                )
            case 4:
                data[place:place] = rng.choice((b"[", b'{"a":')) * rng.choice((1, 50, 5000))
    return Case("broken JSON", post(path, bytes(data)))


def odd_body(rng: random.Random) -> Case:
    path, body = valid(rng)
    good = json.dumps(body).encode()
    data = rng.choice(
        (b"", b"null", b"[]", b'"text"', b"5", good + good, good[:-1] + b',"model":"demo","model":5}', good + b"x")
    )
    kind = rng.choice(
        ("application/json", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded")
    )
    return Case("odd body", post(path, data, content_type=kind))


# -------------------------------------------------------------------------------------------------- HTTP


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


# -------------------------------------------------------------------------------------------------- too much


def too_many_values(rng: random.Random) -> Case:
    """A body of megabytes, of one kind of value."""
    count = rng.choice((20_000, 300_000, 1_200_000))
    path, head, item, tail = rng.choice(
        (
            ("/v1/chat/completions", b'{"messages":[', b'{"role":"user","content":""}', b"]}"),
            ("/v1/chat/completions", b'{"messages":[{"role":"user","content":[', b"{}", b"]}]}"),
            ("/v1/completions", b'{"max_tokens":1,"prompt":[', b"5", b"]}"),
            ("/v1/completions", b'{"max_tokens":1,"truncate_prompt_tokens":5,"prompt":[', b"5", b"]}"),
            ("/v1/completions", b'{"prompt":[', b"[5]", b"]}"),
            ("/v1/completions", b'{"prompt":[', b'"', b"]}"),
            ("/tokenize", b'{"prompt":"', b"[", b'"}'),
            ("/detokenize", b'{"tokens":[', b"5", b"]}"),
        )
    )
    return Case("too many values", post(path, head + b",".join([item] * count) + tail))


def too_many_members(rng: random.Random) -> Case:
    count = rng.choice((2_000, 100_000, 400_000))
    members = b"{" + b",".join(b'"%d":1' % number for number in range(count)) + b"}"
    name = rng.choice((b"logit_bias", b"metadata", b"chat_template_kwargs", b"unknown"))
    return Case(
        "too many members", post("/v1/completions", b'{"max_tokens":1,"prompt":"Who","%s":%s}' % (name, members))
    )


def template_bomb(rng: random.Random) -> Case:
    """Long variables for the model's template, or a template of the request's own."""
    field, value = rng.choice(
        (
            ("chat_template_kwargs", {"bos_token": "x" * 10**6, "eos_token": "y" * 10**6}),
            ("chat_template_kwargs", {"messages": [], "range": 10**10}),
            ("chat_template", "{{ 'a' * 10**10 }}"),
            ("chat_template", "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
        )
    )
    body = {"messages": [USER] * rng.choice((1, 1000)), "max_tokens": 1, field: value}
    return Case("template bomb", post("/v1/chat/completions", json.dumps(body).encode()))


def too_much_around_a_body(rng: random.Random) -> Case:
    """Trailers, chunk extensions or headers without end."""
    _, body = valid(rng)
    data = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(data), data)
    count = rng.choice((100, 10_000, 100_000))
    return Case(
        "too much around a body",
        rng.choice(
            (
                chunked + b"0\r\n" + b"x-trailer: 1\r\n" * count + b"\r\n",
                chunked + b"0;" + b"x" * 10 * count + b"\r\n\r\n",
                head + b"x: 1\r\n" * count + b"Content-Length: 0\r\n\r\n",
                head + b"x: " + b"y" * 10 * count + b"\r\n\r\n",
            )
        ),
        hang_up=True,
        read_first=True,
    )


KINDS: Final[list[tuple[Callable[[random.Random], Case], int]]] = [
    (wrong_field, 35),
    (broken_json, 20),
    (odd_body, 10),
    (wrong_route, 10),
    (broken_http, 8),
    (odd_headers, 6),
    (noise, 3),
    (cut_off, 4),
    (hangs_up, 4),
    (too_many_values, 1),
    (too_many_members, 1),
    (template_bomb, 2),
    (too_much_around_a_body, 2),
]


# -------------------------------------------------------------------------------------------------- parts


def valid(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body that it takes, to be spoilt."""
    path, body = rng.choice(BODIES)
    return path, copy.deepcopy(body)


def good_request(rng: random.Random) -> bytes:
    path, body = valid(rng)
    return post(path, json.dumps(body).encode())


def post(path: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
