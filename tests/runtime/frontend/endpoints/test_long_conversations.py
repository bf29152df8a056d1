"""Bodies with many short parts of one text: joining them takes time that is linear in their length."""

import time

import pytest

from kvasir.frontend.endpoints.messages.request import CountTokensRequest
from kvasir.frontend.endpoints.responses.request import MAX_METADATA, ResponsesRequest
from kvasir.frontend.errors import ApiError
from kvasir.frontend.request_bodies.request_body import parse

COUNT = 8192
TEXT = "y" * 3900
SECONDS = 5.0
"""CPU time: both take a fraction of a second, and took over a minute when each part was a copy of all before."""


def test_neighbours_of_one_role_are_joined_at_once() -> None:
    body = parse(CountTokensRequest, {"messages": [{"role": "user", "content": TEXT}] * COUNT})
    start = time.process_time()
    (message,) = body.template_messages()
    assert time.process_time() - start < SECONDS
    assert len(message["content"]) == COUNT * (len(TEXT) + 1) - 1


def test_system_messages_of_a_response_are_joined_at_once() -> None:
    items = [{"role": "system", "content": TEXT}] * (COUNT - 1) + [{"role": "user", "content": "Hi"}]
    body = parse(ResponsesRequest, {"input": items, "instructions": "Be short."})
    start = time.process_time()
    system, user = body.template_messages()
    assert time.process_time() - start < SECONDS
    assert system["content"].startswith("Be short.\n" + TEXT)
    assert user == {"role": "user", "content": "Hi"}


def test_entries_of_metadata_are_limited_before_their_check() -> None:
    with pytest.raises(ApiError, match=f"at most {MAX_METADATA}"):
        parse(ResponsesRequest, {"input": "Hi", "metadata": dict.fromkeys(map(str, range(149_000)), 1)})
