"""POST /tokenize and /detokenize: text to tokens and back. GET /tokenizer_info: tokenizer and template."""

import orjson
from fastapi import Response

from kvasir.frontend.endpoints.answers import DetokenizeAnswer, TokenizeAnswer, TokenizerInfo, errors
from kvasir.frontend.endpoints.chat.messages import template_messages
from kvasir.frontend.endpoints.tokens.request import DetokenizeRequest, TokenizeRequest
from kvasir.frontend.errors import ApiError
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep

router = new_router()


@router.post("/tokenize", responses=errors(404, body=True))
async def tokenize(body: TokenizeRequest, service: ServiceDep, record: RecordDep) -> TokenizeAnswer:
    """The tokens of a text, or of a conversation in the model's chat template."""
    body.check()
    record.model = service.model_name(body.model)
    tokens = await _tokens(service, body)
    strings = service.llm.input.token_strings(tokens) if body.return_token_strs else None
    return TokenizeAnswer(
        count=len(tokens), max_model_len=service.llm.max_model_len, tokens=tokens, token_strs=strings
    )


@router.post("/detokenize", responses=errors(404, body=True))
async def detokenize(body: DetokenizeRequest, service: ServiceDep, record: RecordDep) -> DetokenizeAnswer:
    """The text of these tokens, special ones included."""
    record.model = service.model_name(body.model)
    return DetokenizeAnswer(prompt=await service.llm.input.detokenize(body.tokens))


@router.get("/tokenizer_info", response_model=TokenizerInfo, responses=errors(404))
async def tokenizer_info(service: ServiceDep) -> Response:
    """The model's tokenizer_config.json and its chat template, if --enable-tokenizer-info-endpoint is set."""
    if service.tokenizer_info is None:
        raise ApiError(
            404,
            "/tokenizer_info is disabled: start the server with --enable-tokenizer-info-endpoint",
            code="endpoint_disabled",
        )
    return Response(orjson.dumps(service.tokenizer_info), media_type="application/json")


async def _tokens(service: Service, body: TokenizeRequest) -> list[int]:
    processor = service.llm.input
    if body.prompt is not None:
        return await processor.tokenize(body.prompt, body.add_special_tokens is not False)
    assert body.messages is not None  # by body.check()
    return await processor.render_chat(template_messages(body.messages), **body.template_variables())
