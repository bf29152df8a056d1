"""The bodies of POST /tokenize and POST /detokenize, in vLLM's form."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvasir.frontend.endpoints.chat.messages import Messages, TemplateFields
from kvasir.frontend.endpoints.chat.tools import FunctionTool, tool_use
from kvasir.frontend.errors import bad_field
from kvasir.frontend.request_bodies.request_body import RequestBody


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
