"""POST /v1/responses: a conversation in, the assistant's next message out, in the form of OpenAI's newer API."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import Request, Response
from msgspec.json import encode

from kvasir.client.async_llm import Delta
from kvasir.frontend.answer_parts import TokenLogprob
from kvasir.frontend.endpoints.answers import STREAM, errors
from kvasir.frontend.endpoints.responses.answer import (
    ResponseAnswer,
    ResponseObject,
    ResponseUsage,
    status_of,
    usage_of,
)
from kvasir.frontend.endpoints.responses.events import ResponseEvents
from kvasir.frontend.endpoints.responses.items import OutputItems
from kvasir.frontend.endpoints.responses.prompt import prepare
from kvasir.frontend.endpoints.responses.request import ResponsesRequest
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.generation import Generation
from kvasir.frontend.generation.generation_request import header_rank
from kvasir.frontend.generation.parsed_text import ParsedText
from kvasir.frontend.generation.sse import EventStream
from kvasir.frontend.parsers.parsed import ContentText, ParsedEvent
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep
from kvasir.link.protocol import FinishReason


class TextScores:
    """Assigns the log probabilities of tokens to the texts of messages."""

    # the API has no place for those of reasoning and calls
    def __init__(self, names: logprobs.TokenNames, top: int | None) -> None:
        """`top`: None means no log probabilities."""
        self._names = names
        self._top = top
        self._held: list[TokenLogprob] = []
        """Log probabilities of tokens without text yet."""
        self._in_message = True
        self.count = 0

    def of(self, delta: Delta, events: list[ParsedEvent]) -> list[TokenLogprob]:
        """Return the log probabilities of the first message text of a delta."""
        # final tokens without text get an event with an empty text
        if self._top is None:
            return []
        entries = self._held + self._entries(delta, self._top)
        self._held = []
        if events:
            self._in_message = isinstance(events[-1], ContentText)
        if not any(isinstance(event, ContentText) for event in events):
            if events or not self._in_message:
                return []
            if delta.finish_reason is None:
                self._held = entries
                return []
            events.append(ContentText(""))
        self.count += (self._top + 1) * len(entries)
        return entries

    def _entries(self, delta: Delta, top: int) -> list[TokenLogprob]:
        if delta.logprobs is None:
            return []
        return logprobs.of_chat(self._names, delta.token_ids, delta.logprobs, top).content


router = new_router()


@router.post("/v1/responses", response_model=ResponseAnswer, responses=STREAM | errors(404, body=True))
async def create_response(
    request: Request, body: ResponsesRequest, service: ServiceDep, record: RecordDep
) -> Response:
    """A conversation in, the assistant's next message out, in the form of OpenAI's newer API."""
    body.check()
    model, adapter = service.served(body.model)
    prompted, plan = await prepare(service, body, header_rank(request.scope), adapter)
    response = ResponseObject(body, prompted.params, model, secrets.token_hex(16))
    generation = Generation(service.llm, (response.id, response.id), [prompted], 1)
    record.follow(model, generation)
    names = logprobs.TokenNames(service.llm.detokenizer, as_ids=False)
    output = _Output(generation, plan.parsed_text(), TextScores(names, body.wanted_logprobs))
    items = OutputItems(service.parsers.tool_format)
    if body.stream:
        events = ResponseEvents(response, items)
        return EventStream(
            _stream(output, events),
            service.live,
            lambda error: events.failure(error, output.usage),
            generation.waits_for,
        )
    async with service.live.watch(request.scope):
        answer = await _whole(output, items, response)
    return Response(answer, media_type="application/json")


async def _stream(output: "_Output", events: ResponseEvents) -> AsyncGenerator[bytes, None]:
    async with aclosing(output.parts()) as parts:
        async for part in parts:
            written = b"" if events.begun else events.opening()
            written += events.texts(part.events, part.logprobs)
            if part.finish_reason is not None:
                written += events.closing(part.finish_reason, output.usage)
            if written:
                yield written


async def _whole(output: "_Output", items: OutputItems, response: ResponseObject) -> bytes:
    reason = None
    async with aclosing(output.parts()) as parts:
        async for part in parts:
            items.take_all(part.events, part.logprobs)
            reason = part.finish_reason
    items.at_least_one()
    whole = response.finish(items.end(status_of(reason), scored=True), reason, output.usage)
    return await logprobs.written(output.scores.count, lambda: encode(whole))


@dataclass
class _Part:
    events: list[ParsedEvent]
    logprobs: list[TokenLogprob]
    """Log probabilities of the first text of a message among the events."""
    finish_reason: FinishReason | None


class _Output:
    def __init__(self, generation: Generation, text: ParsedText, scores: TextScores) -> None:
        self._generation = generation
        self._text = text
        self.scores = scores

    @property
    def usage(self) -> ResponseUsage:
        return usage_of(self._generation.usage, self._text.reasoning_tokens)

    async def parts(self) -> AsyncGenerator[_Part, None]:
        async with aclosing(self._generation.events()) as deltas:
            async for _, delta in deltas:
                events = self._text.events(delta)
                yield _Part(events, self.scores.of(delta, events), delta.finish_reason)
