"""POST /v1/completions: text or tokens in, text out; `n` choices per prompt."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fastapi import Request, Response
from msgspec.json import encode

from kvasir.client.input.prompted import Prompted
from kvasir.frontend.endpoints.answers import STREAM, errors
from kvasir.frontend.endpoints.completions.answer import CompletionAnswer, CompletionWriter
from kvasir.frontend.endpoints.completions.request import DEFAULT_MAX_TOKENS, CompletionRequest
from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.beam_generation import BeamGeneration
from kvasir.frontend.generation.generation import Generation
from kvasir.frontend.generation.sse import Chunks, EventStream
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep
from kvasir.request.adapter import Adapter
from kvasir.request.constraint import OutputConstraint

OBJECT: Final = "text_completion"

router = new_router()


@dataclass(frozen=True)
class _Prompt:
    prompted: Prompted
    echo: str


@router.post("/v1/completions", response_model=CompletionAnswer, responses=STREAM | errors(404, body=True))
async def create_completion(
    request: Request, body: CompletionRequest, service: ServiceDep, record: RecordDep
) -> Response:
    """Text or tokens in, text out."""
    body.check()
    body.take_rank(request.scope)
    model, adapter = service.served(body.model)
    prompts = await _prepare(service, body, adapter)
    generation = _generation(service, body, [each.prompted for each in prompts])
    record.follow(model, generation)
    created = int(time.time())
    writer = CompletionWriter(service.llm.detokenizer, body, [each.echo for each in prompts])
    if isinstance(generation, Generation) and body.stream:
        chunks = Chunks(generation.id, OBJECT, created, model, body.include_usage, service.fingerprint)
        return EventStream(
            _stream(generation, chunks, writer, body.continuous_usage), service.live, waits_for=generation.waits_for
        )
    async with service.live.watch(request.scope):
        choices = await generation.choices(body.n)

        def write() -> bytes:
            written, usage = writer.choices(choices), generation.usage
            answer = CompletionAnswer(
                generation.id, OBJECT, created, model, written, usage, service.fingerprint, None
            )
            return encode(answer)

        answer = await logprobs.written(sum(map(writer.entries, choices)), write)
    return Response(answer, media_type="application/json")


def _generation(service: Service, body: CompletionRequest, prompts: list[Prompted]) -> Generation | BeamGeneration:
    ids = body.ids("cmpl")
    if body.use_beam_search:
        return BeamGeneration(service.llm, ids, prompts, body.n, body.length_penalty)
    return Generation(service.llm, ids, prompts, body.candidates, body.prompt_only)


async def _prepare(service: Service, body: CompletionRequest, adapter: Adapter | None) -> list[_Prompt]:
    prompts = body.prompts()
    if len(prompts) > service.max_prompts:
        raise bad_field(
            "prompt", f"prompt: {len(prompts)} prompts are too many, send at most {service.max_prompts}"
        )
    if len(prompts) * body.candidates > service.max_prompts:
        name = "n" if body.best_of is None else "best_of"
        raise bad_field(
            name,
            f"{name}: {body.candidates} choices for each of {len(prompts)} prompts are too many, ask for at most "
            f"{service.max_prompts} in all",
        )
    source = body.grammar_source()
    constraint = await service.llm.input.constraint(source)
    prepared = [await _prepare_one(service, body, prompts[0], constraint, adapter)]
    for prompt in prompts[1:]:
        await asyncio.sleep(0)  # others get their turn: there may be thousands
        prepared.append(await _prepare_one(service, body, prompt, constraint, adapter))
    if source is not None:
        field = source.param
        prepared = [replace(each, prompted=replace(each.prompted, constraint_field=field)) for each in prepared]
    logprobs.check_size(body, [each.prompted for each in prepared], body.candidates, bounded=True)
    return prepared


async def _prepare_one(
    service: Service,
    body: CompletionRequest,
    prompt: str | list[int],
    constraint: OutputConstraint | None,
    adapter: Adapter | None,
) -> _Prompt:
    llm = service.llm
    max_tokens = 1 if body.prompt_only else body.max_tokens
    keep = body.kept_prompt_tokens(llm.max_model_len, max_tokens or DEFAULT_MAX_TOKENS)
    if isinstance(prompt, str):
        tokens = await llm.input.tokenize(prompt, body.add_special_tokens, keep)
    else:
        tokens = prompt if keep is None else prompt[-keep:]
    if max_tokens is None and len(tokens) + DEFAULT_MAX_TOKENS <= llm.max_model_len:
        max_tokens = DEFAULT_MAX_TOKENS
    prompted = llm.input.prepare(
        tokens,
        body.sampling,
        max_tokens=max_tokens,
        logprobs=body.needed_logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        priority=body.priority,
        cache_salt=body.cache_salt,
        data_parallel_rank=body.data_parallel_rank,
        constraint=constraint,
        adapter=adapter,
    )
    if not body.echo:
        return _Prompt(prompted, "")
    as_tokens = body.add_special_tokens and not body.sampling.skip_special_tokens  # then the prompt's are seen, too
    if isinstance(prompt, str) and keep is None and not as_tokens:
        return _Prompt(prompted, prompt)
    return _Prompt(prompted, await llm.input.detokenize(tokens, body.sampling.skip_special_tokens))


async def _stream(
    generation: Generation, chunks: Chunks, writer: CompletionWriter, continuous_usage: bool
) -> AsyncGenerator[bytes, None]:
    async with aclosing(generation.events()) as events:
        async for index, delta in events:
            usage = generation.usage if continuous_usage else None
            prompted = generation.prompts[index]
            if writer.top is None:
                choice = writer.delta(index, delta, prompted)
            else:
                choice = await logprobs.written(
                    writer.entries(delta), partial(writer.delta, index, delta, prompted)
                )
            event = chunks.choice(choice, usage)
            yield event + chunks.end(generation.usage) if generation.complete else event
