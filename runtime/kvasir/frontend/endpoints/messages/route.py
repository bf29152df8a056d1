"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request, Response

from kvasir.client.async_llm import AsyncLLM
from kvasir.client.input.input_processor import Prompted
from kvasir.client.request_errors import InvalidRequest
from kvasir.frontend.endpoints.answers import STREAM
from kvasir.frontend.endpoints.messages.answer import MessageWriter, failure
from kvasir.frontend.endpoints.messages.answer_schema import ERRORS, CountTokensAnswer, MessageAnswer
from kvasir.frontend.endpoints.messages.errors import REQUEST_ID_HEADER
from kvasir.frontend.endpoints.messages.request import CountTokensRequest, MessagesRequest
from kvasir.frontend.generation.generation import Generation
from kvasir.frontend.generation.rank_header import header_rank
from kvasir.frontend.generation.sse import EventStream
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep

router = new_router()


@router.post("/v1/messages", response_model=MessageAnswer, responses=STREAM | ERRORS)
async def create_message(
    request: Request, body: MessagesRequest, service: ServiceDep, record: RecordDep
) -> Response:
    """A conversation in, the assistant's next message out, in the form of Anthropic's API."""
    body.check()
    model = service.model_name(body.model)
    prompted = await _prepare(service.llm, body, header_rank(request.scope))
    id = f"msg_{secrets.token_hex(16)}"
    generation = Generation(service.llm, (id, id), [prompted], 1)
    record.follow(model, generation)
    writer = MessageWriter(id, model, bounded_by_context=prompted.params.max_tokens < body.max_tokens)
    if body.stream:
        stream = EventStream(
            _stream(generation, writer),
            service.live,
            lambda error: failure(error, record.request_id),
            generation.waits_for,
        )
        stream.headers[REQUEST_ID_HEADER] = record.request_id
        return stream
    async with service.live.watch(request.scope):
        (choice,) = await generation.choices(1)
    headers = {REQUEST_ID_HEADER: record.request_id}
    return Response(writer.whole(choice, generation.usage), headers=headers, media_type="application/json")


@router.post("/v1/messages/count_tokens", responses=ERRORS)
async def count_tokens(body: CountTokensRequest, service: ServiceDep, record: RecordDep) -> CountTokensAnswer:
    """The number of tokens of a conversation, as POST /v1/messages would count them."""
    body.check()
    record.model = service.model_name(body.model)
    return CountTokensAnswer(input_tokens=len(await _prompt(service.llm, body)))


async def _prompt(llm: AsyncLLM, body: CountTokensRequest) -> list[int]:
    messages = body.template_messages()
    return await llm.input.render_chat(messages, **body.template_variables(messages))


async def _prepare(llm: AsyncLLM, body: MessagesRequest, rank: int | None) -> Prompted:
    """Raises InvalidRequest with this endpoint's names. A `max_tokens` beyond the context means all of its rest, as
    in Anthropic's API: clients must send one, without knowing the context."""
    prompt = await _prompt(llm, body)
    room = llm.max_model_len - len(prompt)
    try:
        max_tokens = min(body.max_tokens, room) if room > 0 else None
        return llm.input.prepare(prompt, body.sampling, max_tokens=max_tokens, data_parallel_rank=rank)
    except InvalidRequest as error:
        param = {"prompt": "messages", "stop": "stop_sequences"}.get(error.param or "", error.param)
        raise InvalidRequest(str(error), param, error.code) from None


async def _stream(generation: Generation, writer: MessageWriter) -> AsyncGenerator[bytes, None]:
    begun = False
    async with aclosing(generation.events()) as deltas:
        async for _, delta in deltas:
            written = b"" if begun else writer.opening(generation.usage)
            begun = True
            if delta.text:
                written += writer.delta(delta.text)
            if delta.finish_reason is not None:
                written += writer.closing(delta, generation.usage)
            yield written
