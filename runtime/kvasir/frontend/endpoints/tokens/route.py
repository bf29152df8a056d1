"""POST /tokenize and /detokenize: what the model's tokenizer and chat template make of a text, and back."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvasir.frontend.endpoints.answers import DetokenizeAnswer, TokenizeAnswer
from kvasir.frontend.endpoints.chat.request import template_messages
from kvasir.frontend.endpoints.fields import parse
from kvasir.frontend.endpoints.tokens.request import DETOKENIZE, TOKENIZE, TokenizeRequest
from kvasir.frontend.http.body import read_json
from kvasir.frontend.routing import Routes
from kvasir.frontend.service import Service, service_of
from kvasir.frontend.telemetry.request_log import record_of

routes = Routes()


@routes.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """The tokens of a text, or of a conversation in the model's chat template."""
    service = service_of(request)
    body = parse(await read_json(request, service.max_request_bytes), TOKENIZE)
    body.check()
    record_of(request).model = service.model_name(body.model)
    tokens = await _tokens(service, body)
    strings = service.llm.input.token_strings(tokens) if body.return_token_strs else None
    return _json(TokenizeAnswer(len(tokens), service.llm.max_model_len, tokens, strings))


@routes.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of these tokens, special ones included."""
    service = service_of(request)
    body = parse(await read_json(request, service.max_request_bytes), DETOKENIZE)
    record_of(request).model = service.model_name(body.model)
    return _json(DetokenizeAnswer(await service.llm.input.detokenize(body.tokens)))


async def _tokens(service: Service, body: TokenizeRequest) -> list[int]:
    processor = service.llm.input
    if body.prompt is not None:
        return await processor.tokenize(body.prompt, body.add_special_tokens is not False)
    assert body.messages is not None  # by body.check()
    return await processor.render_chat(template_messages(body.messages), **body.template_variables())


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
