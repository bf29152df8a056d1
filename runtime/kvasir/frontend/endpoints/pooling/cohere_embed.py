"""POST /v2/embed, in Cohere's form."""

from fastapi import Request

from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.endpoints.pooling.answer import (
    CohereEmbedAnswer,
    CohereEmbeddings,
    CohereMeta,
    CohereUnits,
    CohereVersion,
)
from kvasir.frontend.endpoints.pooling.pooled import pool, pooling_of
from kvasir.frontend.endpoints.pooling.request import CohereEmbedRequest, PoolingBody
from kvasir.frontend.endpoints.pooling.vector_forms import bits, in_base64, signed_bits
from kvasir.frontend.errors import unfit_model
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep
from kvasir.hub.pooling.pooling_info import EMBED
from kvasir.request.pool_params import PoolParams

router = new_router()

_PROMPTS = {"search_query": "query", "search_document": "document"}


@router.post("/v2/embed", responses=errors(404, body=True))
async def embed_texts(
    request: Request, body: CohereEmbedRequest, service: ServiceDep, record: RecordDep
) -> CohereEmbedAnswer:
    """A vector for each text."""
    pooling = pooling_of(service)
    if pooling.info.task != EMBED:
        raise unfit_model("/v2/embed needs a model that makes vectors, and this one scores: use /v2/rerank")
    pooling.check_dimensions(body.output_dimension)
    prompt = None if body.input_type is None else _PROMPTS.get(body.input_type, body.input_type)
    settings = PoolingBody(
        model=body.model,
        truncate_prompt_tokens=None if body.truncate == "NONE" else -1,
        truncation_side="left" if body.truncate == "START" else "right",
        prompt_name=prompt if prompt in pooling.info.prompts else None,  # others change nothing, as in vLLM
    )
    params = PoolParams(body.output_dimension)
    pooled = await pool(service, request.scope, record, settings, body.texts, params, field="texts", prefix="embd")
    embeddings = CohereEmbeddings()
    types = body.embedding_types or ["float"]
    if "float" in types:
        embeddings.numbers = pooled.numbers()
    if "base64" in types:
        embeddings.base64 = [in_base64(vector) for vector in pooled.vectors]
    if "binary" in types:
        embeddings.binary = [signed_bits(vector) for vector in pooled.vectors]
    if "ubinary" in types:
        embeddings.ubinary = [bits(vector) for vector in pooled.vectors]
    meta = CohereMeta(CohereVersion("2"), CohereUnits(pooled.usage.prompt_tokens))
    return CohereEmbedAnswer(pooled.id, embeddings, body.texts, meta)
