"""The OpenAPI document matches the server's behaviour."""

import asyncio
from typing import Any

import httpx
import jsonschema
import pytest

from runtime.frontend.endpoints.pooling.pooling_models import embedding_frontend
from runtime.frontend.harness import MODEL, Frontend, running_frontend

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "pods", "parameters": {"type": "object"}}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 3}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 1, "n": 1, "temperature": None}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 3, "n": 2, "return_token_ids": True}),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "return_token_ids": True, "stop": ["."], "echo": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 3}),
    ("/v1/responses", {"input": [USER], "include": ["message.output_text.logprobs"], "previous_response_id": None}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 3}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 50, "stop_sequences": ["."], "tools": [], "system": None}),
    ("/v1/messages/count_tokens", {"messages": [USER], "system": [{"type": "text", "text": "Be brief."}]}),
    ("/tokenize", {"prompt": "Hi", "return_token_strs": True}),
    ("/tokenize", {"messages": [USER]}),
    ("/detokenize", {"tokens": [5, 6]}),
    ("/invocations", {"prompt": "Hi", "max_tokens": 3}),
    ("/invocations", {"messages": [USER], "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": [USER], "max_tokens": 3, "echo": True, "use_beam_search": False}),
    ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL], "tool_choice": "none", "functions": None}),
    ("/v1/completions", {"prompt": "Hi", "structured_outputs": {"json": "{}", "disable_any_whitespace": True}}),
    ("/v1/completions", {"prompt": "Hi", "guided_json": {"type": "object"}, "guided_decoding_backend": "auto"}),
    (
        "/v1/chat/completions",
        {
            "messages": [USER],
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        },
    ),
]
POOLING_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/embeddings", {"input": "Hi", "encoding_format": "base64", "user": None}),
    ("/v1/embeddings", {"input": [[1, 2], [3]], "truncate_prompt_tokens": -1}),
    ("/v2/embed", {"texts": ["Hi"], "input_type": "search_query", "embedding_types": ["float", "base64"]}),
    ("/pooling", {"input": ["Hi"], "task": "embed"}),
    ("/score", {"text_1": "Hi", "text_2": ["a", "b"]}),
    ("/v1/score", {"queries": ["Hi"], "documents": "a"}),
    ("/rerank", {"query": "Hi", "documents": ["a", {"text": "b"}], "top_n": 1}),
    ("/v1/rerank", {"query": "Hi", "documents": ["a"]}),
    ("/v2/rerank", {"query": "Hi", "documents": ["a"], "return_documents": True}),
]
BAD_BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hi", "max_tokens": "3"}),
    ("/v1/completions", {"prompt": "Hi", "guided_regex": 5}),
    ("/v1/completions", {"prompt": "Hi", "structured_outputs": {"jsn": {"type": "object"}}}),
    ("/v1/chat/completions", {"messages": [USER], "response_format": {"type": "xml"}}),
    ("/v1/completions", {}),
    ("/v1/chat/completions", {"messages": [USER], "tools": [{}]}),
    ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL], "tool_choice": "any"}),
    (
        "/v1/chat/completions",
        {"messages": [USER], "tools": [TOOL], "tool_choice": {"type": "function", "function": {}}},
    ),
    ("/v1/chat/completions", {"messages": [USER], "thinking_token_budget": -2}),
    ("/v1/chat/completions", {"messages": [{"content": "Hi"}]}),
    ("/v1/responses", {"input": "Hi", "previous_response_id": "resp_1"}),
    ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "xml"}}}),
    ("/v1/messages", {"messages": [USER]}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 3, "tools": [{}]}),
    ("/v1/messages/count_tokens", {"messages": [{"content": "Hi"}]}),
    ("/tokenize", {"prompt": 5}),
    ("/detokenize", {"tokens": ["a"]}),
    ("/invocations", {"max_tokens": 3}),
]


def check(document: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """Raises jsonschema.ValidationError."""
    jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)


def check_answer(document: dict[str, Any], path: str, method: str, answer: httpx.Response) -> None:
    described = document["paths"][path][method]["responses"][str(answer.status_code)]
    check(document, described["content"][answer.headers["content-type"]]["schema"], answer.json())


async def description(client: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await client.get("/openapi.json")).json())


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The description of a frontend, which takes half a second to make."""

    async def described() -> dict[str, Any]:
        async with running_frontend() as frontend, frontend.http() as client:
            return await description(client)

    return asyncio.run(described())


def test_fields_are_described_by_the_texts_below_them(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    own = schemas["CompletionRequest"]["properties"]["echo"]
    inherited = schemas["ChatRequest"]["properties"]["n"]
    of_part = schemas["StreamOptions"]["properties"]["continuous_usage_stats"]
    assert own["description"].startswith("Put the prompt before the output")
    assert inherited["description"].startswith("Choices for each prompt")
    assert of_part["description"].startswith("Report the usage so far")


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_described_body_is_accepted_and_its_answer_described(
    frontend: Frontend, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    async with frontend.http() as client:
        request = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        check(document, request, body)
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        check_answer(document, path, "post", answer)


@pytest.mark.parametrize(("path", "body"), BAD_BODIES)
async def test_forbidden_body_is_refused_in_the_described_form(
    frontend: Frontend, document: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    async with frontend.http() as client:
        request = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        with pytest.raises(jsonschema.ValidationError):
            check(document, request, body)
        answer = await client.post(path, json=body)
        assert answer.status_code == 400
        check_answer(document, path, "post", answer)


async def test_described_pooling_bodies_are_accepted() -> None:
    async with embedding_frontend() as frontend, frontend.http() as client:
        document = await description(client)
        for path, body in POOLING_BODIES:
            request = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
            check(document, request, body)
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            check_answer(document, path, "post", answer)


async def test_the_answers_of_all_get_endpoints_are_as_described(
    frontend: Frontend, document: dict[str, Any]
) -> None:
    async with frontend.http() as client:
        for path, operations in document["paths"].items():
            if "get" not in operations or path == "/metrics":
                continue
            check_answer(document, path, "get", await client.get(path.replace("{name}", MODEL)))


def test_references_resolve_and_each_endpoint_has_answers(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [r for key, v in value.items() for r in ([v] if key == "$ref" else references(v))]
        return [r for each in value for r in references(each)] if isinstance(value, list) else []

    assert {reference.rpartition("/")[2] for reference in references(document)} <= schemas.keys()
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["responses"]["200"]["content"]
            assert operation["description"], operation


async def test_keys_are_described_where_they_are_needed() -> None:
    async with running_frontend(api_key=("key",)) as frontend, frontend.http() as client:
        document = await description(client)
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            async with running_frontend(api_key=("key",)) as frontend, frontend.http() as client:
                refused = (await client.request(method, path)).status_code == 401
            assert ("security" in operation) == refused == ("401" in operation["responses"]), path
