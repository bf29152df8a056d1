"""POST /v1/chat/completions: a conversation in, the assistant's next message out."""

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvasir.client.async_llm import Delta
from kvasir.client.errors import InvalidRequest
from kvasir.client.input_processor import Prompted
from kvasir.frontend.body import read_json
from kvasir.frontend.generation import Choice, Generation
from kvasir.frontend.service import Service, service_of
from kvasir.frontend.sse import Chunks, EventStream
from kvasir.frontend.types.chat import CHAT, ChatRequest
from kvasir.frontend.types.fields import parse

router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(request: Request) -> Response:
    service = service_of(request)
    body = parse(await read_json(request, service.max_request_bytes), CHAT)
    model = service.model_name(body.model)
    generation = Generation(service.llm, f"chatcmpl-{uuid.uuid4().hex}", [await _prepare(service, body)])
    created = int(time.time())
    if body.stream:
        chunks = Chunks(generation.id, "chat.completion.chunk", created, model, body.include_usage)
        return EventStream(_stream(generation, chunks, body.return_token_ids), service.live)
    async with service.live.watch(request.receive):
        (choice,) = await generation.choices()
    answer = {
        "id": generation.id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [_choice(choice, body.return_token_ids)],
        "usage": generation.usage,
    }
    if body.return_token_ids:
        answer["prompt_token_ids"] = choice.prompt_token_ids
    return Response(orjson.dumps(answer), media_type="application/json")


async def _prepare(service: Service, body: ChatRequest) -> Prompted:
    newer = body.max_completion_tokens is not None
    processor = service.llm.input
    prompt = await processor.render_chat(body.template_messages(), **body.template_variables())
    try:
        return processor.prepare(
            prompt,
            max_tokens=body.max_completion_tokens if newer else body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            seed=body.seed,
            stop_token_ids=body.stop_token_ids,
            ignore_eos=body.ignore_eos,
        )
    except InvalidRequest as error:  # name the field that this endpoint has
        if error.param == "prompt":
            error.param = "messages"
        elif error.param == "max_tokens" and newer:
            error.param = "max_completion_tokens"
        raise


async def _stream(generation: Generation, chunks: Chunks, with_token_ids: bool) -> AsyncGenerator[bytes, None]:
    first = True
    async with aclosing(generation.events()) as events:
        async for _, delta in events:
            event = chunks.choice(_delta(delta, with_token_ids))
            if first:
                first = False
                event = _opening(generation, chunks, with_token_ids) + event
            yield event
    yield chunks.end(generation.usage)


def _opening(generation: Generation, chunks: Chunks, with_token_ids: bool) -> bytes:
    """The chunk before the first text: who speaks."""
    choice: dict[str, object] = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    if with_token_ids:
        return chunks.choice_with(choice, prompt_token_ids=generation.prompts[0].prompt_token_ids)
    return chunks.choice(choice)


def _delta(delta: Delta, with_token_ids: bool) -> dict[str, object]:
    choice: dict[str, object] = {
        "index": 0,
        "delta": {"content": delta.text} if delta.text else {},
        "logprobs": None,
        "finish_reason": delta.finish_reason,
    }
    if delta.stop_token_id is not None:
        choice["stop_reason"] = delta.stop_token_id
    if with_token_ids:
        choice["token_ids"] = delta.token_ids
    return choice


def _choice(choice: Choice, with_token_ids: bool) -> dict[str, object]:
    result: dict[str, object] = {
        "index": 0,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_token_id,
    }
    if with_token_ids:
        result["token_ids"] = choice.token_ids
    return result
