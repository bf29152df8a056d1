"""POST /v1/responses: a conversation in, the assistant's next message out, in the form of OpenAI's newer API."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import Request, Response

from kvasir.client.async_llm import Delta
from kvasir.frontend.endpoints.answers import STREAM, errors
from kvasir.frontend.endpoints.responses.answer import ResponseObject
from kvasir.frontend.endpoints.responses.answer_schema import ResponseAnswer
from kvasir.frontend.endpoints.responses.events import ResponseEvents
from kvasir.frontend.endpoints.responses.prompt import prepare
from kvasir.frontend.endpoints.responses.request import ResponsesRequest
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.generation import Choice, Generation
from kvasir.frontend.generation.rank_header import header_rank
from kvasir.frontend.generation.sse import EventStream
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep

router = new_router()


@router.post("/v1/responses", response_model=ResponseAnswer, responses=STREAM | errors(404, body=True))
async def create_response(
    request: Request, body: ResponsesRequest, service: ServiceDep, record: RecordDep
) -> Response:
    """A conversation in, the assistant's next message out, in the form of OpenAI's newer API."""
    body.check()
    model = service.model_name(body.model)
    prompted = await prepare(service.llm, body, header_rank(request.scope))
    response = ResponseObject(body, prompted.params, model, secrets.token_hex(16))
    generation = Generation(service.llm, (response.id, response.id), [prompted], 1)
    record.follow(model, generation)
    scores = _Logprobs(logprobs.TokenNames(service.llm.detokenizer, as_ids=False), body.wanted_logprobs)
    if body.stream:
        events = ResponseEvents(response)
        return EventStream(
            _stream(generation, events, scores),
            service.live,
            lambda error: events.failure(error, generation.usage),
            generation.waits_for,
        )
    async with service.live.watch(request.scope):
        (choice,) = await generation.choices(1)
        answer = await logprobs.written(
            scores.count(choice),
            lambda: orjson.dumps(
                response.finished(choice.text, scores.of(choice), choice.finish_reason, generation.usage)
            ),
        )
    return Response(answer, media_type="application/json")


async def _stream(
    generation: Generation, events: ResponseEvents, scores: "_Logprobs"
) -> AsyncGenerator[bytes, None]:
    async with aclosing(generation.events()) as deltas:
        async for _, delta in deltas:
            written = b"" if events.begun else events.opening()
            entries = scores.of(delta)
            if delta.text or entries:
                written += events.delta(delta.text, entries)
            if delta.finish_reason is not None:
                written += events.closing(delta, generation.usage)
            yield written


class _Logprobs:
    """Writes the log probabilities of tokens, if a request asks for them."""

    def __init__(self, names: logprobs.TokenNames, top: int | None) -> None:
        self._names = names
        self._top = top

    def of(self, tokens: Delta | Choice) -> list[Any]:
        if self._top is None or tokens.logprobs is None:
            return []
        content: list[Any] = logprobs.of_chat(self._names, tokens.token_ids, tokens.logprobs, self._top)["content"]
        return content

    def count(self, choice: Choice) -> int:
        return 0 if self._top is None else (self._top + 1) * len(choice.token_ids)
