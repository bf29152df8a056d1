"""POST /v1/chat/completions: a conversation in, the assistant's next message out."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import Request, Response
from msgspec.json import encode

from kvasir.client.input.prompted import Prompted
from kvasir.client.request_errors import InvalidRequest
from kvasir.frontend.endpoints.answers import STREAM, errors
from kvasir.frontend.endpoints.chat.answer import OBJECT, ChatAnswer
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.endpoints.chat.writer import ChatWriter
from kvasir.frontend.endpoints.output_plan import OutputPlan, plan_output
from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.beam_generation import BeamGeneration
from kvasir.frontend.generation.generation import Generation
from kvasir.frontend.generation.sse import Chunks, EventStream
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep
from kvasir.request.adapter import Adapter

router = new_router()


@router.post("/v1/chat/completions", response_model=ChatAnswer, responses=STREAM | errors(404, body=True))
async def create_chat_completion(
    request: Request, body: ChatRequest, service: ServiceDep, record: RecordDep
) -> Response:
    """A conversation in, the assistant's next message out."""
    body.check()
    body.take_rank(request.scope)
    model, adapter = service.served(body.model)
    prompted, plan = await _prepare(service, body, adapter)
    generation = _generation(service, body, prompted)
    record.follow(model, generation)
    created = int(time.time())
    writer = ChatWriter(service, body, plan)
    if isinstance(generation, Generation) and body.stream:
        chunks = Chunks(generation.id, f"{OBJECT}.chunk", created, model, body.include_usage, service.fingerprint)
        return EventStream(_stream(generation, chunks, writer), service.live, waits_for=generation.waits_for)
    async with service.live.watch(request.scope):
        if isinstance(generation, Generation):
            choices = await generation.choices(body.n, writer.read)
        else:
            choices = await generation.choices(body.n)
        answer = await logprobs.written(
            writer.entries(choices),
            lambda: encode(writer.answer(generation.id, created, model, choices, generation.usage)),
        )
    return Response(answer, media_type="application/json")


def _generation(service: Service, body: ChatRequest, prompted: Prompted) -> Generation | BeamGeneration:
    ids = body.ids("chatcmpl")
    if body.use_beam_search:
        return BeamGeneration(service.llm, ids, [prompted], body.n, body.length_penalty)
    return Generation(service.llm, ids, [prompted], body.n)


async def _prepare(service: Service, body: ChatRequest, adapter: Adapter | None) -> tuple[Prompted, OutputPlan]:
    if body.n > service.max_prompts:
        raise bad_field("n", f"n: {body.n} choices are too many, ask for at most {service.max_prompts}")
    newer = body.max_completion_tokens is not None
    max_tokens = body.max_completion_tokens if newer else body.max_tokens
    llm = service.llm
    keep = body.kept_prompt_tokens(llm.max_model_len, max_tokens)
    _check_budget(service, body)
    use = body.tool_use()
    variables = body.template_variables()
    variables["tools"] = use.template_tools(hides_unused=service.hides_unused_tools) if use.offered else None
    prompt = await llm.input.render_chat(body.template_messages(), keep, **variables)
    plan = await plan_output(
        service,
        use,
        prompt,
        body.grammar_source(),
        thinking_budget=body.thinking_budget,
        continued=body.continue_final_message,
    )
    try:
        prompted = llm.input.prepare(
            prompt,
            body.sampling,
            max_tokens=max_tokens,
            logprobs=body.wanted_logprobs,
            priority=body.priority,
            cache_salt=body.cache_salt,
            data_parallel_rank=body.data_parallel_rank,
            adapter=adapter,
        )
    except InvalidRequest as error:  # name the field that this endpoint has
        if error.param == "prompt":
            error.param = "messages"
        elif error.param == "max_tokens" and newer:
            error.param = "max_completion_tokens"
        raise
    if body.logprobs or body.sampling.prompt_logprobs is not None:
        logprobs.check_size(body, [prompted], body.n, bounded=max_tokens is not None)
    return plan.apply(prompted), plan


def _check_budget(service: Service, body: ChatRequest) -> None:
    if service.parsers.reasoning_format is None and body.thinking_token_budget not in (None, -1):
        raise bad_field(
            "thinking_token_budget",
            "thinking_token_budget: how this model marks its reasoning is not known: start the server with "
            "--reasoning-parser, or leave it out",
        )


async def _stream(generation: Generation, chunks: Chunks, writer: ChatWriter) -> AsyncGenerator[bytes, None]:
    opened: set[int] = set()
    async with aclosing(generation.events()) as events:
        async for index, delta in events:
            event = writer.texts(index, delta, generation, chunks)
            if index not in opened:
                opened.add(index)
                event = writer.opening(index, generation, chunks) + event
            if generation.complete:
                event += chunks.end(writer.usage(generation.usage))
            if event:
                yield event
