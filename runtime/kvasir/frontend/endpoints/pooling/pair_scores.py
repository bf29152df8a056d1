"""POST /score and /rerank: how well texts fit each other, by a cross-encoder or by the cosine of two vectors."""

import time
from collections.abc import Sequence
from operator import mul

from fastapi import Request

from kvasir.client.input.pooling_input import PoolingText
from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.endpoints.pooling.answer import (
    ClassifyAnswer,
    LabelEntry,
    PoolingUsage,
    RerankAnswer,
    RerankDocument,
    RerankResult,
    ScoreAnswer,
    ScoreEntry,
)
from kvasir.frontend.endpoints.pooling.pooled import inputs_of, pool, pooling_of
from kvasir.frontend.endpoints.pooling.request import ClassifyRequest, PoolingBody, RerankRequest, ScoreRequest
from kvasir.frontend.errors import unfit_model
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep, RequestRecord
from kvasir.hub.pooling.pooling_info import CLASSIFY
from kvasir.request.pool_params import PoolParams

router = new_router()

Scored = tuple[str, str, list[float], PoolingUsage]  # id, model, a score for each pair, usage


@router.post("/score", responses=errors(404, body=True))
@router.post("/v1/score", operation_id="create_scores_v1_post", responses=errors(404, body=True))
async def create_scores(
    request: Request, body: ScoreRequest, service: ServiceDep, record: RecordDep
) -> ScoreAnswer:
    """How well each text of one side fits the text of the other."""
    left, right = body.pairs()
    name, model, scores, usage = await _scores(
        request, body, service, record, (left, right), body.activates, "text_2", "score"
    )
    data = [ScoreEntry("score", index, score) for index, score in enumerate(scores)]
    return ScoreAnswer(name, "list", int(time.time()), model, data, usage)


@router.post("/rerank", responses=errors(404, body=True))
@router.post("/v1/rerank", operation_id="rerank_v1_post", responses=errors(404, body=True))
@router.post("/v2/rerank", operation_id="rerank_v2_post", responses=errors(404, body=True))
async def rerank(request: Request, body: RerankRequest, service: ServiceDep, record: RecordDep) -> RerankAnswer:
    """The documents that fit the query, the best first."""
    documents = body.texts()
    name, model, scores, usage = await _scores(
        request, body, service, record, ([body.query], documents), body.activates, "documents", "rerank"
    )
    shows = body.return_documents
    if shows is None:
        shows = not request.scope["path"].startswith("/v2/")
    best = sorted(range(len(scores)), key=lambda index: scores[index], reverse=True)[: body.top_n or None]
    results = [RerankResult(index, scores[index]) for index in best]
    if shows:
        for result in results:
            result.document = RerankDocument(documents[result.index])
    return RerankAnswer(name, model, usage, results)


async def _scores(
    request: Request,
    body: PoolingBody,
    service: Service,
    record: RequestRecord,
    sides: tuple[list[str], list[str]],
    activate: bool,
    field: str,
    prefix: str,
) -> Scored:
    left, right = sides
    info = pooling_of(service).info
    inputs: Sequence[PoolingText]
    if info.task == CLASSIFY:
        if len(info.labels) != 1 or info.by_token:
            scored = "each token: use /pooling" if info.by_token else f"{len(info.labels)} labels: use /classify"
            raise unfit_model(f"a pair needs one score, and this model scores {scored}")
        firsts = left * len(right) if len(left) == 1 else left
        inputs = list(zip(firsts, right, strict=True))
        params = PoolParams(activate=activate)
        pooled = await pool(service, request.scope, record, body, inputs, params, field=field, prefix=prefix)
        return pooled.id, pooled.model, [numbers[0] for numbers in pooled.numbers()], pooled.usage
    inputs = [*left, *right]
    params = PoolParams(normalize=None if info.dot_similarity else True)
    pooled = await pool(service, request.scope, record, body, inputs, params, field=field, prefix=prefix)
    vectors = pooled.numbers()
    firsts_of = vectors[: len(left)] if len(left) > 1 else vectors[:1] * len(right)
    scores = [sum(map(mul, one, other)) for one, other in zip(firsts_of, vectors[len(left) :], strict=True)]
    return pooled.id, pooled.model, scores, pooled.usage


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
