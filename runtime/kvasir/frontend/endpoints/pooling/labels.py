"""POST /classify: the most likely label of each text, in vLLM's form."""

import time

from fastapi import Request

from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.endpoints.pooling.answer import ClassifyAnswer, LabelEntry
from kvasir.frontend.endpoints.pooling.pooled import inputs_of, pool, pooling_of
from kvasir.frontend.endpoints.pooling.request import ClassifyRequest
from kvasir.frontend.errors import unfit_model
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep
from kvasir.hub.pooling.pooling_info import CLASSIFY
from kvasir.request.pool_params import PoolParams

router = new_router()


@router.post("/classify", responses=errors(404, body=True))
async def classify(
    request: Request, body: ClassifyRequest, service: ServiceDep, record: RecordDep
) -> ClassifyAnswer:
    """The probabilities of the model's labels for each input."""
    info = pooling_of(service).info
    if info.task != CLASSIFY:
        raise unfit_model("/classify needs a model with labels, and this one makes vectors: use /v1/embeddings")
    if info.by_token:
        raise unfit_model("/classify needs a score for each input, and this model scores each token: use /pooling")
    params = PoolParams(activate=body.activates)
    inputs = await inputs_of(service, body)
    pooled = await pool(service, request.scope, record, body, inputs, params, field="input", prefix="classify")
    data = []
    for index, probs in enumerate(pooled.numbers()):
        best = max(range(len(probs)), key=probs.__getitem__)
        data.append(LabelEntry(index, info.labels[best], probs, len(probs)))
    return ClassifyAnswer(pooled.id, "list", int(time.time()), pooled.model, data, pooled.usage)
