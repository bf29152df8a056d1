"""POST /invocations: SageMaker's one path, for chats and completions."""

from typing import Any, Final

from fastapi import Request, Response

from kvasir.frontend.endpoints.answers import STREAM, errors
from kvasir.frontend.endpoints.chat.answer import ChatAnswer
from kvasir.frontend.endpoints.chat.request import ChatRequest
from kvasir.frontend.endpoints.chat.route import create_chat_completion
from kvasir.frontend.endpoints.completions.answer import CompletionAnswer
from kvasir.frontend.endpoints.completions.request import CompletionRequest
from kvasir.frontend.endpoints.completions.route import create_completion
from kvasir.frontend.errors import bad_field
from kvasir.frontend.request_bodies.body import read_json
from kvasir.frontend.request_bodies.request_body import parse
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep

_SCHEMAS: Final = [{"$ref": f"#/components/schemas/{model.__name__}"} for model in (ChatRequest, CompletionRequest)]
_BODY: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"anyOf": _SCHEMAS}}}}
}

router = new_router()


@router.post(
    "/invocations",
    response_model=ChatAnswer | CompletionAnswer,
    responses=STREAM | errors(404, body=True),
    openapi_extra=_BODY,
)
async def invoke(request: Request, service: ServiceDep, record: RecordDep) -> Response:
    """A body with messages is answered as by /v1/chat/completions, one with a prompt as by /v1/completions."""
    given = await read_json(request, service.max_request_bytes)
    strict = service.strict_fields
    if given.get("messages") is not None:
        return await create_chat_completion(request, parse(ChatRequest, given, strict=strict), service, record)
    if given.get("prompt") is not None:
        return await create_completion(request, parse(CompletionRequest, given, strict=strict), service, record)
    raise bad_field(
        "messages", "the body has neither messages (for a chat) nor a prompt (for a completion): send one of them"
    )
