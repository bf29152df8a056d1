import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from kvasir.link.protocol import AddRequest, Dead, RefusalKind
from kvasir.request.pool_params import PoolParams
from runtime.frontend.endpoints.pooling.pooling_models import embedding_frontend
from runtime.frontend.harness import MODEL, Frontend
from runtime.link_messages import prompt_of


@pytest.fixture
async def embeds() -> AsyncIterator[Frontend]:
    async with embedding_frontend(overrides='{"is_matryoshka": true}') as frontend:
        yield frontend


async def post(frontend: Frontend, path: str, **body: Any) -> httpx.Response:
    async with frontend.http() as client:
        return await client.post(path, json=body)


def params(request: AddRequest) -> PoolParams:
    assert request.pooling is not None
    return request.pooling


async def test_each_form_of_input_gives_its_vectors(embeds: Frontend) -> None:
    tokens = await embeds.service.llm.input.tokenize("Hi there")
    forms: list[tuple[Any, list[list[int]]]] = [
        ("Hi there", [tokens]),
        (["Hi there", "Hi there"], [tokens, tokens]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
    ]
    for given, prompts in forms:
        before = len(embeds.engine.seen.requests)
        answer = (await post(embeds, "/v1/embeddings", input=given)).json()
        assert [each["embedding"] for each in answer["data"]] == [[1.0, len(prompt)] for prompt in prompts]
        assert [each["index"] for each in answer["data"]] == list(range(len(prompts)))
        assert answer["usage"] == {"prompt_tokens": sum(map(len, prompts)), "total_tokens": sum(map(len, prompts))}
        seen = embeds.engine.seen.requests[before:]
        assert sorted(prompt_of(request) for request in seen) == sorted(prompts)
    await embeds.idle()


async def test_empty_text_is_an_input_like_others(embeds: Frontend) -> None:
    for given in ("", [""]):
        answer = (await post(embeds, "/v1/embeddings", input=given)).json()
        assert answer["usage"]["prompt_tokens"] == len(await embeds.service.llm.input.tokenize("")) > 0


async def test_openai_client_decodes_base64(embeds: Frontend) -> None:
    embeds.engine.script.vector = lambda request: [0.1, -2.5]
    async with embeds.openai() as client:
        answer = await client.embeddings.create(model=MODEL, input=["a", "b"], dimensions=2, user="me")
    assert [each.embedding for each in answer.data] == [pytest.approx([0.1, -2.5])] * 2
    assert {params(request).dimensions for request in embeds.engine.seen.requests} == {2}
    raw = (await post(embeds, "/v1/embeddings", input="a", encoding_format="base64")).json()
    assert struct.unpack("<2f", base64.b64decode(raw["data"][0]["embedding"])) == pytest.approx((0.1, -2.5))


@pytest.mark.parametrize(
    ("dtype", "order", "expected"),
    [
        ("float32", "native", struct.pack("<2f", 0.1, -2.5)),
        ("float32", "big", struct.pack(">2f", 0.1, -2.5)),
        ("float16", "little", struct.pack("<2e", 0.1, -2.5)),
        ("bfloat16", "little", bytes.fromhex("cd3d20c0")),
        ("bfloat16", "big", bytes.fromhex("3dcdc020")),
    ],
)
async def test_base64_has_the_asked_form(embeds: Frontend, dtype: str, order: str, expected: bytes) -> None:
    embeds.engine.script.vector = lambda request: [0.1, -2.5]
    for path, key in (("/v1/embeddings", "embedding"), ("/pooling", "data")):
        body = {"input": "a", "encoding_format": "base64", "embed_dtype": dtype, "endianness": order}
        answer = (await post(embeds, path, **body)).json()
        assert base64.b64decode(answer["data"][0][key]) == expected


@pytest.mark.parametrize("name", ["normalize", "use_activation"])
async def test_vectors_are_normalised_as_asked(name: str, embeds: Frontend) -> None:
    for path in ("/v1/embeddings", "/pooling"):
        for value in (True, False, None):
            await post(embeds, path, input="a", **{name: value})
            assert params(embeds.engine.seen.requests[-1]).normalize is value


async def test_messages_are_one_input(embeds: Frontend) -> None:
    messages = [{"role": "user", "content": "Hi there"}]
    for ends in (False, True):
        expected = await embeds.service.llm.input.render_chat(messages, add_generation_prompt=ends)
        for path in ("/v1/embeddings", "/pooling"):
            answer = await post(embeds, path, messages=messages, add_generation_prompt=ends)
            assert answer.json()["usage"]["prompt_tokens"] == len(expected)
            assert prompt_of(embeds.engine.seen.requests[-1]) == expected
    both: dict[str, Any] = {"add_generation_prompt": True, "continue_final_message": True}
    response = await post(embeds, "/v1/embeddings", messages=messages, **both)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "continue_final_message")


async def test_cohere_form_names_types_and_units(embeds: Frontend) -> None:
    types = ["float", "base64", "binary", "ubinary"]
    body = {"texts": ["a", "b"], "input_type": "search_query", "embedding_types": types}
    answer = (await post(embeds, "/v2/embed", **body)).json()
    assert answer["embeddings"]["float"] == [[1.0, 2.0], [1.0, 2.0]]
    assert len(answer["embeddings"]["base64"]) == 2
    assert answer["embeddings"]["binary"] == [[64]] * 2
    assert answer["embeddings"]["ubinary"] == [[192]] * 2
    assert answer["response_type"] == "embeddings_by_type"
    assert answer["meta"]["billed_units"] == {"input_tokens": 4}


async def test_pooling_answers_in_vllms_form(embeds: Frontend) -> None:
    answer = (await post(embeds, "/pooling", input="a", task="embed")).json()
    assert answer["data"] == [{"object": "pooling", "index": 0, "data": [1.0, 2.0]}]
    for task in ("classify", "token_classify"):
        assert (await post(embeds, "/pooling", input="a", task=task)).status_code == 400


@pytest.mark.parametrize(
    ("body", "param", "part"),
    [
        ({"input": []}, "input", "list is empty"),
        ({"input": [[5], []]}, "input", "at least one token"),
        ({"input": [10**9]}, "input", "out of range"),
        ({"input": "a", "dimensions": 10**6}, "dimensions", "give 1 to"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": [5] * 3000}, "input", "maximum context length"),
        ({"input": ["a"] * 2049}, "input", "too many"),
        ({"input": "a", "truncate_prompt_tokens": 10**6}, "truncate_prompt_tokens", "give 1 to"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name", "no prompt 'query'"),
        ({"input": "a", "messages": [{"role": "user", "content": "a"}]}, "input", "either input"),
        ({}, "input", "either input"),
        ({"messages": []}, "messages", "empty"),
        ({"input": "a", "embed_dtype": "fp8_e4m3"}, "embed_dtype", "bfloat16"),
    ],
)
async def test_a_mistake_is_named(embeds: Frontend, body: dict[str, Any], param: str, part: str) -> None:
    response = await post(embeds, "/v1/embeddings", **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert part in error["message"]
    await embeds.idle()


@pytest.mark.parametrize(("side", "expected"), [("right", [5, 6]), ("left", [7, 8])])
async def test_inputs_are_truncated_on_the_named_side(embeds: Frontend, side: str, expected: list[int]) -> None:
    body: dict[str, Any] = {"input": [5, 6, 7, 8], "truncate_prompt_tokens": 2, "truncation_side": side}
    assert (await post(embeds, "/v1/embeddings", **body)).status_code == 200
    assert prompt_of(embeds.engine.seen.requests[-1]) == expected


async def test_truncation_keeps_the_special_tokens(embeds: Frontend) -> None:
    whole = await embeds.service.llm.input.tokenize("one two three four")
    answer = await post(embeds, "/v1/embeddings", input="one two three four", truncate_prompt_tokens=2)
    assert answer.json()["usage"]["prompt_tokens"] == 2
    assert prompt_of(embeds.engine.seen.requests[-1]) == whole[:2]


async def test_inputs_are_aborted_together_when_the_client_leaves(embeds: Frontend) -> None:
    embeds.engine.script.pause_at = 0
    async with embeds.http() as client:
        sent = client.build_request("POST", "/v1/embeddings", json={"input": ["a", "b", "c"]})
        request = asyncio.create_task(client.send(sent))
        await asyncio.to_thread(embeds.engine.wait_requests, 3)
        request.cancel()
        await asyncio.to_thread(embeds.engine.wait_aborts, 3)
    await embeds.idle()


async def test_inputs_take_the_slots_of_the_client_share() -> None:
    keys = ("first", "second")
    async with (
        embedding_frontend(max_live_requests=8, api_key=keys) as frontend,
        frontend.http(Authorization="Bearer first") as client,
    ):
        frontend.engine.script.pause_at = 0
        many = asyncio.create_task(client.post("/v1/embeddings", json={"input": ["a"] * 4}))
        await asyncio.to_thread(frontend.engine.wait_requests, 4)
        refused = await client.post("/v1/embeddings", json={"input": ["a"]})
        assert (refused.status_code, "--max-client-share" in refused.text) == (429, True)
        frontend.engine.script.pause_at = None
        frontend.engine.resume()
        assert (await many).status_code == 200
        await frontend.idle()
        assert not frontend.service.shares.held


async def test_inputs_of_a_lost_engine_are_computed_again(embeds: Frontend) -> None:
    lost, kept = embeds.engine, await embeds.add_engine()
    lost.script.pause_at = 0
    async with embeds.http() as client:
        body = {"input": [[5] * count for count in range(1, 9)]}
        request = asyncio.create_task(client.post("/v1/embeddings", json=body))
        await asyncio.to_thread(lost.wait_requests, 1)
        await asyncio.to_thread(lost.close, Dead("killed"))
        answer = (await request).json()
    assert [each["embedding"] for each in answer["data"]] == [[1.0, float(count)] for count in range(1, 9)]
    again = {request.request_id for request in lost.seen.requests}
    assert again <= {request.request_id for request in kept.seen.requests}
    embeds.engines.remove(lost)
    await embeds.idle()


async def test_a_failed_input_fails_the_answer_only(embeds: Frontend) -> None:
    embeds.engine.script.error, embeds.engine.script.refusal = "why", RefusalKind.INVALID
    response = await post(embeds, "/v1/embeddings", input=["a", "b"])
    assert (response.status_code, response.json()["error"]["message"]) == (400, "why")
    await embeds.idle()


async def test_dimensions_need_a_model_made_for_them() -> None:
    async with embedding_frontend() as frontend:
        response = await post(frontend, "/v1/embeddings", input="a", dimensions=2)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "dimensions")


async def test_endpoints_of_the_other_kind_say_what_to_use(embeds: Frontend, frontend: Frontend) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/invocations"):
        response = await post(embeds, path, prompt="a")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "endpoint_not_supported")
        assert "use /v1/embeddings" in response.json()["error"]["message"]
    for path in ("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v2/rerank"):
        response = await post(frontend, path, input="a")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "endpoint_not_supported")
        assert "--task embed" in response.json()["error"]["message"]


async def test_models_name_their_task(embeds: Frontend, frontend: Frontend) -> None:
    for each, task in ((embeds, "embed"), (frontend, "generate")):
        async with each.http() as client:
            (model,) = (await client.get("/v1/models")).json()["data"][:1]
        assert model["task"] == task


async def test_inputs_are_not_looked_up_in_a_prefix_cache(embeds: Frontend) -> None:
    await post(embeds, "/v1/embeddings", input=[[5, 6, 7], [5, 6, 7]])
    await embeds.idle()
    async with embeds.http() as client:
        lines = (await client.get("/metrics")).text.splitlines()
    values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:")}
    assert values["vllm:prompt_tokens_total"] == 6
    assert values["vllm:prefix_cache_queries_total"] == 0
    assert values["vllm:request_params_max_tokens_count"] == 0
