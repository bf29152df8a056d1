"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from fastapi import Request, Response
from msgspec import Struct

from kvasir.client.input.prompted import Prompted
from kvasir.client.request_errors import InvalidRequest
from kvasir.frontend.endpoints.answers import STREAM, errors
from kvasir.frontend.endpoints.messages.answer import MessageAnswer, MessageObject
from kvasir.frontend.endpoints.messages.answer_blocks import AnswerBlocks
from kvasir.frontend.endpoints.messages.events import MessageEvents, failure
from kvasir.frontend.endpoints.messages.request import CountTokensRequest, MessagesRequest
from kvasir.frontend.endpoints.output_plan import OutputPlan, plan_output
from kvasir.frontend.endpoints.tool_use import ToolUse
from kvasir.frontend.errors import REQUEST_ID_HEADER, MessageErrorAnswer
from kvasir.frontend.generation.generation import Generation
from kvasir.frontend.generation.generation_request import header_rank
from kvasir.frontend.generation.parsed_text import ParsedText
from kvasir.frontend.generation.sse import EventStream
from kvasir.frontend.routing import json_response, new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep
from kvasir.request.adapter import Adapter

router = new_router()
_ERRORS: Final = {status: each | {"model": MessageErrorAnswer} for status, each in errors(404, body=True).items()}


class CountTokensAnswer(Struct):
    input_tokens: int


@router.post("/v1/messages", response_model=MessageAnswer, responses=STREAM | _ERRORS)
async def create_message(
    request: Request, body: MessagesRequest, service: ServiceDep, record: RecordDep
) -> Response:
    """A conversation in, the assistant's next message out, in the form of Anthropic's API."""
    body.check()
    model, adapter = service.served(body.model)
    prompted, plan = await _prepare(service, body, header_rank(request.scope), adapter)
    id = f"msg_{secrets.token_hex(16)}"
    generation = Generation(service.llm, (id, id), [prompted], 1)
    record.follow(model, generation)
    text = plan.parsed_text()
    bounded_by_context = prompted.params.max_tokens < body.max_tokens
    message = MessageObject(id, model, text, bounded_by_context)
    blocks = AnswerBlocks(service.parsers.tool_format, hides_thinking=body.hides_thinking)
    if body.stream:
        stream = EventStream(
            _stream(generation, text, MessageEvents(message, blocks)),
            service.live,
            lambda error: failure(error, record.request_id),
            generation.waits_for,
        )
        stream.headers[REQUEST_ID_HEADER] = record.request_id
        return stream
    async with service.live.watch(request.scope):
        answer = await _whole(generation, text, message, blocks)
    return json_response(answer, headers={REQUEST_ID_HEADER: record.request_id})


@router.post("/v1/messages/count_tokens", responses=_ERRORS)
async def count_tokens(body: CountTokensRequest, service: ServiceDep, record: RecordDep) -> CountTokensAnswer:
    """The number of tokens of a conversation, as POST /v1/messages would count them."""
    body.check()
    record.model = service.model_name(body.model)
    prompt, _ = await _prompt(service, body, body.tool_use())
    return CountTokensAnswer(len(prompt))


async def _prompt(service: Service, body: CountTokensRequest, use: ToolUse) -> tuple[list[int], bool]:
    """Return the prompt, and whether the answer continues its last message."""
    messages = body.template_messages()
    variables = body.template_variables(messages)
    tools = use.template_tools(hides_unused=service.hides_unused_tools)
    prompt = await service.llm.input.render_chat(messages, **variables, tools=tools)
    return prompt, variables["continue_final_message"]


async def _prepare(
    service: Service, body: MessagesRequest, rank: int | None, adapter: Adapter | None
) -> tuple[Prompted, OutputPlan]:
    """Raises InvalidRequest with this endpoint's names."""
    # In Anthropic's API, which clients use without knowing the context, a larger max_tokens means the context's
    # rest.
    llm, use = service.llm, body.tool_use()
    prompt, continued = await _prompt(service, body, use)
    plan = await plan_output(
        service, use, prompt, body.grammar_source(), thinking_budget=body.thinking_budget, continued=continued
    )
    room = llm.max_model_len - len(prompt)
    try:
        max_tokens = min(body.max_tokens, room) if room > 0 else None
        prompted = llm.input.prepare(
            prompt, body.sampling, max_tokens=max_tokens, data_parallel_rank=rank, adapter=adapter
        )
    except InvalidRequest as error:
        param = {"prompt": "messages", "stop": "stop_sequences"}.get(error.param or "", error.param)
        raise InvalidRequest(str(error), param, error.code) from None
    return plan.apply(prompted), plan


async def _stream(generation: Generation, text: ParsedText, events: MessageEvents) -> AsyncGenerator[bytes, None]:
    async with aclosing(generation.events()) as deltas:
        async for _, delta in deltas:
            written = b"" if events.begun else events.opening(generation.usage)
            written += events.texts(text.events(delta))
            if delta.finish_reason is not None:
                written += events.closing(delta, generation.usage)
            if written:
                yield written


async def _whole(
    generation: Generation, text: ParsedText, message: MessageObject, blocks: AnswerBlocks
) -> MessageAnswer:
    last = None
    async with aclosing(generation.events()) as deltas:
        async for _, last in deltas:
            for event in text.events(last):
                blocks.take(event)
    assert last is not None
    blocks.at_least_one()
    return message.finish(blocks.end(), last, generation.usage)
