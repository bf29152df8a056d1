"""Bad requests: each gets a status, the name of the field and a sentence that helps, in OpenAI's body."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from runtime.frontend.harness import MODEL, Frontend, running_frontend

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = {"role": "user", "content": "Hi"}
JSON = {"content-type": "application/json"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Frontend]:
    async with running_frontend() as result:
        yield result


def message(**fields: object) -> dict[str, object]:
    return {"messages": [USER, fields]}


COMPLETION_CASES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "prompt is missing"),
    ({"prompt": None}, "prompt", "prompt is missing"),
    ({"prompt": 5}, "prompt", "expected a string or an array, got an integer"),
    ({"prompt": {"text": "Hi"}}, "prompt", "expected a string or an array, got an object"),
    ({"prompt": []}, "prompt", "the list is empty"),
    ({"prompt": ["a", 5]}, "prompt[1]", "expected a string, got an integer"),
    ({"prompt": [[5], "a"]}, "prompt[1]", "expected an array, got a string"),
    ({"prompt": [True]}, "prompt[0]", "got a boolean"),
    ({"prompt": [[5.5]]}, "prompt[0][0]", "expected an integer, got a number"),
    ({"prompt": [10**6]}, "prompt", "1000000"),
    ({"prompt": [-1]}, "prompt", "-1"),
    ({"prompt": [[]]}, "prompt", "empty"),
    ({"prompt": "Hi", "max_tokens": "5"}, "max_tokens", "expected an integer, got a string"),
    ({"prompt": "Hi", "max_tokens": 0}, "max_tokens", "at least 1"),
    ({"prompt": "Hi", "max_tokens": 10**6}, "max_tokens", "context"),
    ({"prompt": "Hi", "temperature": -1}, "temperature", "expected a number >= 0"),
    ({"prompt": "Hi", "temperature": 2.01}, "temperature", "expected a number <= 2"),
    ({"prompt": "Hi", "temperature": "hot"}, "temperature", "got a string"),
    ({"prompt": "Hi", "top_p": 0}, "top_p", "at most 1"),
    ({"prompt": "Hi", "top_p": 1.5}, "top_p", "at most 1"),
    ({"prompt": "Hi", "top_k": -2}, "top_k", "-1"),
    ({"prompt": "Hi", "seed": 2**63}, "seed", "64 bits"),
    ({"prompt": "Hi", "seed": 1.5}, "seed", "got a number"),
    ({"prompt": "Hi", "max_tokens": 2**64}, "max_tokens", "out of range: integers have at most 64 bits"),
    (
        {"prompt": "Hi", "stop_token_ids": [2**64]},
        "stop_token_ids[0]",
        "out of range: integers have at most 64 bits",
    ),
    ({"prompt": "Hi", "stop_token_ids": [10**6]}, "stop_token_ids", "1000000"),
    ({"prompt": "Hi", "stream": "yes"}, "stream", "expected a boolean, got a string"),
    ({"prompt": "Hi", "stream_options": True}, "stream_options", "expected an object"),
    ({"prompt": "Hi", "max_tokens": 5.5}, "max_tokens", "expected an integer, got a number"),
    ({"prompt": "Hi", "model": 5}, "model", "got an integer"),
    ({"prompt": "Hi", "n": 0}, "n", "expected an integer >= 1"),
    ({"prompt": "Hi", "n": 129}, "n", "expected an integer <= 128"),
    ({"prompt": "Hi", "n": True}, "n", "got a boolean"),
    ({"prompt": ["Hi"] * 1000, "n": 128}, "n", "128 choices for each of 1000 prompts are too many"),
    ({"prompt": "Hi", "best_of": 1, "n": 2}, "best_of", "less than n"),
    ({"prompt": "Hi", "best_of": 21}, "best_of", "expected an integer <= 20"),
    ({"prompt": "Hi", "best_of": 2, "stream": True}, "best_of", "cannot be streamed"),
    ({"prompt": "Hi", "stop": ""}, "stop", "empty string"),
    ({"prompt": "Hi", "stop": list("abcde")}, "stop", "5 strings are too many, give at most 4"),
    ({"prompt": "Hi", "stop": [5]}, "stop[0]", "got an integer"),
    ({"prompt": "Hi", "logprobs": 21}, "logprobs", "expected an integer <= 20"),
    ({"prompt": "Hi", "logprobs": -1}, "logprobs", "expected an integer >= 0"),
    ({"prompt": "Hi", "logprobs": True}, "logprobs", "got a boolean"),
    ({"prompt": "Hi", "prompt_logprobs": 21}, "prompt_logprobs", "expected an integer <= 20"),
    ({"prompt": "Hi", "prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "cannot be streamed"),
    ({"prompt": "Hi", "min_p": 1.5}, "min_p", "expected a number <= 1"),
    ({"prompt": "Hi", "presence_penalty": 2.5}, "presence_penalty", "expected a number <= 2"),
    ({"prompt": "Hi", "frequency_penalty": -2.5}, "frequency_penalty", "expected a number >= -2"),
    ({"prompt": "Hi", "repetition_penalty": 0}, "repetition_penalty", "expected a number >= 0.01"),
    ({"prompt": "Hi", "logit_bias": {"5": 101}}, "logit_bias.5", "expected a number <= 100"),
    ({"prompt": "Hi", "logit_bias": {"five": 1}}, "logit_bias", "not a token id"),
    ({"prompt": "Hi", "logit_bias": [5]}, "logit_bias", "expected an object"),
    ({"prompt": "Hi", "bad_words": "x"}, "bad_words", "expected an array"),
    ({"prompt": "Hi", "bad_words": [""]}, "bad_words", "has no token"),
    ({"prompt": "Hi", "allowed_token_ids": []}, "allowed_token_ids", "length >= 1"),
    ({"prompt": "Hi", "allowed_token_ids": [-1]}, "allowed_token_ids", "token id -1 is out of range"),
    ({"prompt": "Hi", "min_tokens": -1}, "min_tokens", "expected an integer >= 0"),
    ({"prompt": "Hi", "min_tokens": 6, "max_tokens": 5}, "min_tokens", "at most 5 tokens"),
    ({"prompt": "Hi", "max_tokens": 0, "echo": False}, "max_tokens", "at least 1"),
    ({"prompt": "Hi", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
    ({"prompt": "Hi", "truncate_prompt_tokens": 2**20}, "truncate_prompt_tokens", "more than the context"),
    ({"prompt": "Hi", "truncate_prompt_tokens": 2**63 - 1}, "truncate_prompt_tokens", "more than the context"),
    ({"prompt": "Hi", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "expected an integer >= -1"),
    ({"prompt": "Hi", "priority": 1}, "priority", "--scheduling-policy priority"),
    ({"prompt": "Hi", "priority": 2**63}, "priority", "expected an integer <="),
    ({"prompt": "Hi", "cache_salt": "x" * 1025}, "cache_salt", "length <= 1024"),
    ({"prompt": "Hi", "request_id": "a b"}, "request_id", "printable"),
    ({"prompt": "Hi", "request_id": "line\n"}, "request_id", "printable"),
    ({"prompt": "Hi", "suffix": "!"}, "suffix", "not supported yet"),
]
CHAT_CASES: list[tuple[dict[str, Any], str, str]] = [
    ({}, "messages", "messages is missing"),
    ({"messages": []}, "messages", "the list is empty"),
    ({"messages": "Hi"}, "messages", "expected an array, got a string"),
    ({"messages": ["Hi"]}, "messages[0]", "expected an object, got a string"),
    (message(content="Hi"), "messages[1].role", "messages[1].role is missing"),
    (message(role="user"), "messages[1].content", "messages[1].content is missing"),
    (message(role="robot", content="Hi"), "messages[1].role", "'robot' is not a role"),
    (message(role="system", content=None), "messages[1].content", "messages[1].content is missing"),
    (message(role="assistant", tool_calls=[{}]), "messages[1].tool_calls[0].function", "is missing"),
    (message(role="assistant", tool_calls=[{"function": {}}]), "messages[1].tool_calls[0].function.name", "is mis"),
    (message(role="user", content=[{"type": "refusal"}]), "messages[1].content[0].refusal", "is missing"),
    (message(role="user", content=5), "messages[1].content", "got an integer"),
    (message(role="user", content=[{"text": "Hi"}]), "messages[1].content[0].type", "is missing"),
    (
        message(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        "messages[1].content[0].type",
        "reads text only",
    ),
    (message(role="user", content=[{"type": "text"}]), "messages[1].content[0].text", "is missing"),
    (message(role="user", content=[{"type": "video"}]), "messages[1].content[0].type", "reads text only"),
    ({"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
    ({"messages": [USER], "max_tokens": 10**6}, "max_tokens", "context"),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages", "prompt is too long"),
    *(
        ({"messages": [USER], "chat_template_kwargs": {name: []}}, f"chat_template_kwargs.{name}", "not supported")
        for name in ("messages", "self", "tools", "add_generation_prompt")
    ),
    ({"messages": [USER], "chat_template_kwargs": "x"}, "chat_template_kwargs", "expected an object"),
    ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
    ({"messages": [USER], "tool_choice": "required"}, "tool_choice", "only allowed when tools are specified"),
    ({"messages": [USER], "truncate_prompt_tokens": 2**62}, "truncate_prompt_tokens", "more than the context"),
    ({"messages": [USER], "tools": []}, "tools", "the list is empty"),
    ({"messages": [USER], "tools": [], "tool_choice": "required"}, "tools", "the list is empty"),
    ({"messages": [USER], "functions": []}, "functions", "the list is empty"),
    ({"messages": [USER], "response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
    ({"messages": [USER], "logprobs": 5}, "logprobs", "expected a boolean, got an integer"),
    ({"messages": [USER], "top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs", "expected an integer <= 20"),
    ({"messages": [USER], "n": 129}, "n", "expected an integer <= 128"),
    ({"messages": [USER], "best_of": 2}, "best_of", "not supported yet"),
    (
        {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "exclude each other",
    ),
    ({"messages": [USER], "max_completion_tokens": 3, "min_tokens": 4}, "min_tokens", "at most 3 tokens"),
    ({"messages": [USER], "reasoning_effort": 5}, "reasoning_effort", "expected a string"),
]


@pytest.mark.parametrize(
    ("path", "body", "param", "text"),
    [(COMPLETIONS, *case) for case in COMPLETION_CASES] + [(CHAT, *case) for case in CHAT_CASES],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_field_is_named(
    shared: Frontend, path: str, body: dict[str, Any], param: str, text: str, stream: bool
) -> None:
    async with shared.http() as client:
        response = await client.post(path, json={"stream": stream, **body})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert text in error["message"]
    assert shared.engine.seen.requests == []


@pytest.mark.parametrize("media_type", [None, "text/plain", "application/x-www-form-urlencoded", "text/json"])
async def test_a_body_without_the_content_type_of_json_is_refused(shared: Frontend, media_type: str | None) -> None:
    """A page of another site can send such bodies without asking."""
    headers = {} if media_type is None else {"content-type": media_type}
    async with shared.http() as client:
        response = await client.post(COMPLETIONS, content=b'{"prompt": "Hi"}', headers=headers)
    assert response.status_code == 415
    assert "Content-Type: application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "media_type", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"]
)
async def test_types_of_json_are_taken(shared: Frontend, media_type: str) -> None:
    async with shared.http() as client:
        response = await client.post(COMPLETIONS, content=b'{"prompt": 5}', headers={"content-type": media_type})
    assert response.status_code == 400


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "no body"),
        (b"{", "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b'{"temperature": NaN}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"Hi"', "must be a JSON object"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(
    shared: Frontend, path: str, body: bytes, text: str
) -> None:
    async with shared.http() as client:
        response = await client.post(path, content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"
    assert text in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_unknown_model_is_404_and_the_served_names_are_told(shared: Frontend, path: str) -> None:
    async with shared.http() as client:
        prompt = {"messages": [USER]} if path == CHAT else {"prompt": "Hi"}
        response = await client.post(path, json={"model": "gpt-4", **prompt})
    error = response.json()["error"]
    assert response.status_code == 404
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert MODEL in error["message"]
    assert "demo-alias" in error["message"]


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/models/gpt-4", "/v1/completions/", "/docs/"])
async def test_an_unknown_path_is_404_in_the_same_body(shared: Frontend, path: str) -> None:
    async with shared.http() as client:
        response = await client.get(path)
    assert response.status_code == 404
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_a_wrong_method_is_405_and_the_right_one_is_told(shared: Frontend) -> None:
    async with shared.http() as client:
        response = await client.get(COMPLETIONS)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert "use POST" in response.json()["error"]["message"]


async def test_a_compressed_body_is_refused(shared: Frontend) -> None:
    async with shared.http() as client:
        response = await client.post(COMPLETIONS, content=b"\x1f\x8b", headers={**JSON, "content-encoding": "gzip"})
    assert response.status_code == 415
    assert "gzip" in response.json()["error"]["message"]
