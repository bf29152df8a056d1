"""Bodies with wrong fields, broken JSON, and other content than JSON."""

import copy
import json
import random
from typing import Any, Final

from bench.malformed.valid import Case, post, valid

# Not taken away: without one an answer fills the context, which is valid but takes long.
BOUNDED: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
JUNK: Final[list[Any]] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, 1e-320),
    *("", "x", "0", "NaN", "\x00", "é" * 300, "\U0001f642", "<|endoftext|>", "a" * 20_000, "{}", "null"),
    *([], [[]], [None], [1, "a"], ["a", 1], {}, {"a": {}}, {"": None}, [{}], list(range(300)), [[1] * 50] * 3),
]


def wrong_field(rng: random.Random) -> Case:
    path, body = valid(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _spoil(rng, body)
    return Case("wrong field", post(path, json.dumps(body).encode()))


def _spoil(rng: random.Random, value: Any) -> None:
    # Changes one value within.
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
    # A copy: it may be spoilt further.
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
