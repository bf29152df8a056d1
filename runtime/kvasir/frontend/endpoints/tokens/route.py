"""POST /tokenize and /detokenize: text to tokens and back. GET /tokenizer_info: tokenizer and template."""

from typing import Annotated, Any, ClassVar

import orjson
from fastapi import Response
from pydantic import Field

from kvasir.frontend.endpoints.answers import DetokenizeAnswer, TokenizeAnswer, TokenizerInfo, errors
from kvasir.frontend.endpoints.chat.messages import Messages, TemplateFields, template_messages
from kvasir.frontend.endpoints.chat.tools import FunctionTool, tool_use
from kvasir.frontend.errors import ApiError, bad_field
from kvasir.frontend.request_bodies.request_body import RequestBody
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.frontend.telemetry.request_log import RecordDep


class TokenizeRequest(RequestBody, TemplateFields):
    """Either `prompt` or `messages`."""

    not_yet: ClassVar = {"mm_processor_kwargs": ({},)}

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Add the tokenizer's special tokens to the prompt (the default). Of messages the template writes them."""
    messages: Messages | None = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True)] = Field(default_factory=list)
    """Functions that the template gets with the messages."""
    return_token_strs: bool = False

    def check(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise bad_field("prompt", "give either prompt (a text) or messages (a conversation)")
        if self.messages is not None and self.add_special_tokens:
            raise bad_field(
                "add_special_tokens", "add_special_tokens: the chat template writes them itself; leave it out"
            )
        if self.prompt is not None:
            for name in (
                "add_generation_prompt",
                "continue_final_message",
                "chat_template",
                "chat_template_kwargs",
                "tools",
            ):
                if getattr(self, name):
                    raise bad_field(name, f"{name} is for messages: leave it out with a prompt")

    def template_variables(self) -> dict[str, Any]:
        return {**super().template_variables(), "tools": tool_use(self.tools, None, True).for_template}


class DetokenizeRequest(RequestBody):
    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]


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
