"""POST /v1/embeddings in OpenAI's form, and /pooling in vLLM's."""

import time
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from fastapi import Request

from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.endpoints.pooling.answer import EmbeddingAnswer, EmbeddingEntry, PoolingAnswer, PoolingEntry
from kvasir.frontend.endpoints.pooling.pooled import Pooled, inputs_of, pool, pooling_of
from kvasir.frontend.endpoints.pooling.request import EmbeddingRequest, PoolingRequest
from kvasir.frontend.endpoints.pooling.vector_forms import Vector, in_base64
from kvasir.frontend.errors import bad_field, unfit_model
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep, RequestRecord
from kvasir.hub.pooling.pooling_info import EMBED
from kvasir.request.pool_params import PoolParams

router = new_router()


@router.post("/v1/embeddings", responses=errors(404, body=True))
async def create_embeddings(
    request: Request, body: EmbeddingRequest, service: ServiceDep, record: RecordDep
) -> EmbeddingAnswer:
    """A vector for each input."""
    _check_embeds(service, "/v1/embeddings")
    pooled = await _pool(request, body, service, record, "embd")
    data = [
        EmbeddingEntry("embedding", index, _written(vector, body)) for index, vector in enumerate(pooled.vectors)
    ]
    return EmbeddingAnswer(pooled.id, "list", int(time.time()), pooled.model, data, pooled.usage)


@router.post("/pooling", responses=errors(404, body=True))
async def create_pooling(
    request: Request, body: PoolingRequest, service: ServiceDep, record: RecordDep
) -> PoolingAnswer:
    """The vector or the scores of each input."""
    pooling = pooling_of(service)
    if body.task is not None and not pooling.info.computes(body.task):
        raise bad_field("task", f"task is {body.task!r}: this model is served with --task {pooling.info.task}")
    pooled = await _pool(request, body, service, record, "pool")
    answers: list[Any] = [_written(vector, body) for vector in pooled.vectors]
    if pooling.info.by_token:
        scored = zip(pooled.vectors, pooled.tokens, strict=True)
        rows = [pooling.scores_by_token(scores, tokens.token_ids) for scores, tokens in scored]
        in_lists = body.encoding_format == "float"
        answers = [[each.tolist() for each in row] if in_lists else _written(_joined(row), body) for row in rows]
    data = [PoolingEntry("pooling", index, answer) for index, answer in enumerate(answers)]
    return PoolingAnswer(pooled.id, "list", int(time.time()), pooled.model, data, pooled.usage)


async def _pool(
    request: Request, body: EmbeddingRequest, service: Service, record: RequestRecord, prefix: str
) -> Pooled:
    pooling_of(service).check_dimensions(body.dimensions)
    activates = not isinstance(body, PoolingRequest) or body.activates
    normalize = body.use_activation if body.normalize is None else body.normalize
    params = PoolParams(body.dimensions, normalize, activates)
    inputs = await inputs_of(service, body)
    return await pool(service, request.scope, record, body, inputs, params, field="input", prefix=prefix)


def _joined(rows: Sequence[Vector]) -> Vector:
    return array("f", chain.from_iterable(rows))


def _written(vector: Vector, body: EmbeddingRequest) -> Any:
    if body.encoding_format == "base64":
        return in_base64(vector, body.embed_dtype, body.endianness)
    return vector.tolist()


def _check_embeds(service: Service, path: str) -> None:
    if pooling_of(service).info.task != EMBED:
        raise unfit_model(
            f"{path} needs a model that makes vectors, and this one scores: use /classify, /score or /rerank",
        )
