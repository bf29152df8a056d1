"""POST /v1/chat/completions: a conversation in, the assistant's next message out."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import Request, Response

from kvasir.client.async_llm import Delta
from kvasir.client.input.input_processor import Prompted
from kvasir.client.request_errors import InvalidRequest
from kvasir.frontend.endpoints.answers import STREAM, ChatAnswer, errors
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation import logprobs
from kvasir.frontend.generation.beam_generation import BeamGeneration
from kvasir.frontend.generation.generation import Choice, Generation
from kvasir.frontend.generation.sse import Chunks, EventStream
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep

OBJECT = "chat.completion"

router = new_router()


@router.post("/v1/chat/completions", response_model=ChatAnswer, responses=STREAM | errors(404, body=True))
async def create_chat_completion(
    request: Request, body: ChatRequest, service: ServiceDep, record: RecordDep
) -> Response:
    """A conversation in, the assistant's next message out."""
    body.check()
    body.take_rank(request.scope)
    model = service.model_name(body.model)
    generation = _generation(service, body, await _prepare(service, body))
    record.follow(model, generation)
    created = int(time.time())
    writer = _Writer(service, body)
    if isinstance(generation, Generation) and body.stream:
        chunks = Chunks(generation.id, f"{OBJECT}.chunk", created, model, body.include_usage, service.fingerprint)
        return EventStream(_stream(generation, chunks, writer), service.live, waits_for=generation.waits_for)
    async with service.live.watch(request.scope):
        choices = await generation.choices(body.n)
        head = {"id": generation.id, "object": OBJECT, "created": created, "model": model}
        answer = await logprobs.written(
            writer.entries(choices), lambda: orjson.dumps(head | writer.answer(choices, generation.usage))
        )
    return Response(answer, media_type="application/json")


def _generation(service: Service, body: ChatRequest, prompted: Prompted) -> Generation | BeamGeneration:
    ids = body.ids("chatcmpl")
    if body.use_beam_search:
        return BeamGeneration(service.llm, ids, [prompted], body.n, body.length_penalty)
    return Generation(service.llm, ids, [prompted], body.n)


async def _prepare(service: Service, body: ChatRequest) -> Prompted:
    if body.n > service.max_prompts:
        raise bad_field("n", f"n: {body.n} choices are too many, ask for at most {service.max_prompts}")
    newer = body.max_completion_tokens is not None
    max_tokens = body.max_completion_tokens if newer else body.max_tokens
    llm = service.llm
    keep = body.kept_prompt_tokens(llm.max_model_len, max_tokens)
    prompt = await llm.input.render_chat(body.template_messages(), keep, **body.template_variables())
    try:
        prompted = llm.input.prepare(
            prompt,
            body.sampling,
            max_tokens=max_tokens,
            logprobs=body.wanted_logprobs,
            priority=body.priority,
            cache_salt=body.cache_salt,
            data_parallel_rank=body.data_parallel_rank,
        )
    except InvalidRequest as error:  # name the field that this endpoint has
        if error.param == "prompt":
            error.param = "messages"
        elif error.param == "max_tokens" and newer:
            error.param = "max_completion_tokens"
        raise
    logprobs.check_size(body, [prompted], body.n, bounded=max_tokens is not None)
    return prompted


async def _stream(generation: Generation, chunks: Chunks, writer: "_Writer") -> AsyncGenerator[bytes, None]:
    begun: set[int] = set()
    async with aclosing(generation.events()) as events:
        async for index, delta in events:
            usage = generation.usage if writer.continuous_usage else None
            event = chunks.choice(writer.delta(index, delta), usage)
            if index not in begun:
                begun.add(index)
                event = writer.opening(index, generation, chunks, usage) + event
            yield event + chunks.end(generation.usage) if generation.complete else event


class _Writer:
    """Writes choices as one request asks for them."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self._echo = body.echoed
        self._token_ids = body.return_token_ids
        self._top = body.wanted_logprobs
        self._prompt_top = body.sampling.prompt_logprobs
        self._names = logprobs.TokenNames(service.llm.detokenizer, body.return_tokens_as_token_ids)
        self._fingerprint = service.fingerprint
        self.continuous_usage = body.continuous_usage

    def opening(self, index: int, generation: Generation, chunks: Chunks, usage: dict[str, Any] | None) -> bytes:
        """The chunk before the first text, with the role; and one with the echoed message."""
        begun = self._role(index, generation, chunks, usage)
        if not self._echo:
            return begun
        delta = {"content": self._echo}
        return begun + chunks.choice(
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}, usage
        )

    def _role(self, index: int, generation: Generation, chunks: Chunks, usage: dict[str, Any] | None) -> bytes:
        choice = {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        if self._token_ids:
            prompt = generation.prompts[index].prompt_token_ids
            return chunks.choice_with(choice, usage, prompt_token_ids=prompt.tolist())
        return chunks.choice(choice, usage)

    def delta(self, index: int, delta: Delta) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"content": delta.text} if delta.text else {},
            "logprobs": None if self._top is None else self._logprobs(delta, self._top),
            "finish_reason": delta.finish_reason,
        }
        if delta.stop_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if self._token_ids:
            choice["token_ids"] = delta.token_ids
        return choice

    def answer(self, choices: list[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of the answer after its head."""
        answer: dict[str, Any] = {
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage,
            "system_fingerprint": self._fingerprint,
            "kv_transfer_params": None,
        }
        prompt, scores = choices[0].prompted.prompt_token_ids, choices[0].prompt_logprobs
        if self._token_ids:
            answer["prompt_token_ids"] = prompt.tolist()
        if self._prompt_top is not None and scores is not None:
            answer["prompt_logprobs"] = logprobs.of_prompt(self._names, prompt, scores, self._prompt_top)
        return answer

    def entries(self, choices: list[Choice]) -> int:
        """Log probabilities that an answer with them holds."""
        of_output = 0 if self._top is None else (self._top + 1) * sum(len(choice.token_ids) for choice in choices)
        prompt = choices[0].prompted.prompt_token_ids
        return of_output + (0 if self._prompt_top is None else (self._prompt_top + 1) * len(prompt))

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        result: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "content": self._echo + choice.text, "refusal": None},
            "logprobs": None if self._top is None else self._logprobs(choice, self._top),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._token_ids:
            result["token_ids"] = choice.token_ids
        return result

    def _logprobs(self, tokens: Delta | Choice, top: int) -> dict[str, Any] | None:
        if tokens.logprobs is None:  # it has no tokens
            return None
        return logprobs.of_chat(self._names, tokens.token_ids, tokens.logprobs, top)
