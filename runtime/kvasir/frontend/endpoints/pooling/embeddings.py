"""POST /v1/embeddings in OpenAI's form, and /pooling in vLLM's."""

import time

from fastapi import Request

from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.endpoints.pooling.answer import EmbeddingAnswer, EmbeddingEntry, PoolingAnswer, PoolingEntry
from kvasir.frontend.endpoints.pooling.pooled import Pooled, pool, pooling_of, written
from kvasir.frontend.endpoints.pooling.request import EmbeddingRequest, PoolingRequest
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
        EmbeddingEntry("embedding", index, written(vector, body.encoding_format))
        for index, vector in enumerate(pooled.vectors)
    ]
    return EmbeddingAnswer(pooled.id, "list", int(time.time()), pooled.model, data, pooled.usage)


@router.post("/pooling", responses=errors(404, body=True))
async def create_pooling(
    request: Request, body: PoolingRequest, service: ServiceDep, record: RecordDep
) -> PoolingAnswer:
    """The vector or the scores of each input."""
    task = pooling_of(service).info.task
    if body.task not in (None, task):
        raise bad_field("task", f"task is {body.task!r}: this model is served with --task {task}")
    pooled = await _pool(request, body, service, record, "pool")
    data = [
        PoolingEntry("pooling", index, written(vector, body.encoding_format))
        for index, vector in enumerate(pooled.vectors)
    ]
    return PoolingAnswer(pooled.id, "list", int(time.time()), pooled.model, data, pooled.usage)


async def _pool(
    request: Request, body: EmbeddingRequest, service: Service, record: RequestRecord, prefix: str
) -> Pooled:
    pooling_of(service).check_dimensions(body.dimensions)
    params = PoolParams(body.dimensions, body.normalize)
    return await pool(service, request.scope, record, body, body.inputs(), params, field="input", prefix=prefix)


def _check_embeds(service: Service, path: str) -> None:
    if pooling_of(service).info.task != EMBED:
        raise unfit_model(
            f"{path} needs a model that makes vectors, and this one scores: use /classify, /score or /rerank",
        )
