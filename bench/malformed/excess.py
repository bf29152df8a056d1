"""Requests with too much of something: values, members, work for a template, headers, trailers."""

import json
import random

from bench.malformed.valid import USER, Case, post, valid


def too_many_values(rng: random.Random) -> Case:
    # A body of megabytes, of one kind of value.
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
    # Long variables for the model's template, or a template in the request.
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
    # Trailers, chunk extensions or headers without end.
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
