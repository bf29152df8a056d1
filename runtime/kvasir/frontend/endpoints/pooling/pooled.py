"""Computes the inputs of a body: one request for each, which the engines pack into steps, aborted together."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from starlette.types import Scope

from kvasir.client.input.input_processor import INLINE_CHARACTERS
from kvasir.client.input.pooling_input import PoolingInput, PoolingText, PoolingTokens
from kvasir.client.request_errors import RequestFailed
from kvasir.frontend.endpoints.pooling.answer import PoolingUsage
from kvasir.frontend.endpoints.pooling.request import InputBody, PoolingBody, check_count
from kvasir.frontend.endpoints.pooling.vector_forms import Vector, numbers
from kvasir.frontend.generation.generation import Generation
from kvasir.frontend.http.access import client_of
from kvasir.frontend.service import Service
from kvasir.frontend.telemetry.request_log import RequestRecord
from kvasir.request.pool_params import PoolParams


@dataclass(frozen=True)
class Pooled:
    id: str
    model: str
    vectors: list[Vector]
    usage: PoolingUsage
    tokens: list[PoolingTokens]

    def numbers(self) -> list[list[float]]:
        return [vector.tolist() for vector in self.vectors]


def pooling_of(service: Service) -> PoolingInput:
    pooling = service.llm.input.pooling
    assert pooling is not None, "the middleware rejects other models"
    return pooling


async def inputs_of(service: Service, body: InputBody) -> Sequence[PoolingText]:
    """Return a body's texts or tokens. Raises ApiError and the errors of InputProcessor."""
    conversation = body.conversation()
    if conversation is None:
        return body.inputs()
    messages, variables = conversation
    return [await service.llm.input.render_chat(messages, **variables)]


async def pool(
    service: Service,
    scope: Scope,
    record: RequestRecord,
    body: PoolingBody,
    inputs: Sequence[PoolingText],
    params: PoolParams,
    *,
    field: str,
    prefix: str,
) -> Pooled:
    """Return the vectors of all inputs. Raises ApiError and the errors of AsyncLLM. `field`: with the inputs."""
    check_count(field, inputs, service.max_prompts)
    model = service.model_name(body.model)
    pooling = pooling_of(service)
    body.take_rank(scope)
    form = body.form(pooling.prompt(body.prompt_name))
    client, _ = client_of(scope, service.access.keys.count)
    with service.shares.taken(client, len(inputs)):
        tokens = await service.llm.input.compute(
            partial(pooling.encode, inputs, form, field),
            inline=pooling.num_characters(inputs, form) <= INLINE_CHARACTERS,
        )
        prompts = [
            pooling.prepare(each, params, priority=body.priority, data_parallel_rank=body.data_parallel_rank)
            for each in tokens
        ]
        name = f"{prefix}-{secrets.token_hex(16)}"
        generation = Generation(service.llm, (name, name), prompts, 1)
        record.follow(model, generation)
        async with service.live.watch(scope):
            choices = await generation.choices(1)
    vectors = [numbers(choice.pooled) for choice in choices if choice.pooled]
    if len(vectors) != len(prompts):
        raise RequestFailed("an engine ended a request without its vector: are all engines of this version?")
    num_tokens = generation.usage.prompt_tokens
    return Pooled(name, model, vectors, PoolingUsage(num_tokens, num_tokens), tokens)
