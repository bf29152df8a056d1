"""POST /v1/completions: text or tokens in, text out; one choice per prompt."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvasir.client.async_llm import Delta
from kvasir.client.input_processor import Prompted
from kvasir.frontend.body import read_json
from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation import Choice, Generation
from kvasir.frontend.service import Service, service_of
from kvasir.frontend.sse import Chunks, EventStream
from kvasir.frontend.types.completions import COMPLETION, DEFAULT_MAX_TOKENS, CompletionRequest
from kvasir.frontend.types.fields import parse

OBJECT = "text_completion"

router = APIRouter()


@router.post("/v1/completions")
async def create_completion(request: Request) -> Response:
    service = service_of(request)
    body = parse(await read_json(request, service.max_request_bytes), COMPLETION)
    model = service.model_name(body.model)
    generation = Generation(service.llm, f"cmpl-{uuid.uuid4().hex}", await _prepare(service, body))
    created = int(time.time())
    if body.stream:
        chunks = Chunks(generation.id, OBJECT, created, model, body.include_usage)
        return EventStream(_stream(generation, chunks, body.return_token_ids), service.live)
    async with service.live.watch(request.receive):
        choices = await generation.choices()
    answer = {
        "id": generation.id,
        "object": OBJECT,
        "created": created,
        "model": model,
        "choices": [_choice(i, choice, body.return_token_ids) for i, choice in enumerate(choices)],
        "usage": generation.usage,
    }
    return Response(orjson.dumps(answer), media_type="application/json")


async def _prepare(service: Service, body: CompletionRequest) -> list[Prompted]:
    prompts = body.prompts()
    if len(prompts) > service.max_prompts:
        raise bad_field(
            "prompt", f"prompt: {len(prompts)} prompts are too many, send at most {service.max_prompts}"
        )
    prepared = []
    for prompt in prompts:
        prepared.append(await _prepare_one(service, body, prompt))
        await asyncio.sleep(0)  # others get their turn: there may be thousands
    return prepared


async def _prepare_one(service: Service, body: CompletionRequest, prompt: str | list[int]) -> Prompted:
    llm = service.llm
    if isinstance(prompt, str):
        prompt = await llm.input.tokenize(prompt, body.add_special_tokens)
    max_tokens = body.max_tokens
    if max_tokens is None and len(prompt) + DEFAULT_MAX_TOKENS <= llm.max_model_len:
        max_tokens = DEFAULT_MAX_TOKENS
    return llm.input.prepare(
        prompt,
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        seed=body.seed,
        stop_token_ids=body.stop_token_ids,
        ignore_eos=body.ignore_eos,
    )


async def _stream(generation: Generation, chunks: Chunks, with_token_ids: bool) -> AsyncGenerator[bytes, None]:
    begun: set[int] = set()
    async with aclosing(generation.events()) as events:
        async for index, delta in events:
            choice = _delta(index, delta)
            if with_token_ids:
                choice["token_ids"] = delta.token_ids
                if index not in begun:
                    begun.add(index)
                    choice["prompt_token_ids"] = generation.prompts[index].prompt_token_ids
            yield chunks.choice(choice)
    yield chunks.end(generation.usage)


def _delta(index: int, delta: Delta) -> dict[str, object]:
    choice: dict[str, object] = {
        "index": index,
        "text": delta.text,
        "logprobs": None,
        "finish_reason": delta.finish_reason,
    }
    if delta.stop_token_id is not None:
        choice["stop_reason"] = delta.stop_token_id
    return choice


def _choice(index: int, choice: Choice, with_token_ids: bool) -> dict[str, object]:
    result: dict[str, object] = {
        "index": index,
        "text": choice.text,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_token_id,
    }
    if with_token_ids:
        result["token_ids"] = choice.token_ids
        result["prompt_token_ids"] = choice.prompt_token_ids
    return result
