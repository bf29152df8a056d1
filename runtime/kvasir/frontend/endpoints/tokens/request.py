"""The bodies of POST /tokenize and POST /detokenize, in vLLM's form."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvasir.frontend.endpoints.chat.messages import Messages
from kvasir.frontend.endpoints.chat.request import template_variables
from kvasir.frontend.endpoints.chat.tools import FunctionTool, tool_use
from kvasir.frontend.errors import bad_field
from kvasir.frontend.request_bodies.request_body import RequestBody


class TokenizeRequest(RequestBody):
    """Either `prompt` or `messages`."""

    not_yet: ClassVar = {"mm_processor_kwargs": ({},)}

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    """Add the tokenizer's special tokens to the prompt (the default). Of messages the template writes them."""
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    """End the conversation with the beginning of the assistant's answer; the default, unless a message is
    continued."""
    continue_final_message: bool = False
    """End it with the last message, which an answer would continue."""
    chat_template: str | None = None
    """Used instead of the model's template, if the server has --trust-request-chat-template."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
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
        generation_prompt = self.add_generation_prompt
        if generation_prompt is None:
            generation_prompt = not self.continue_final_message
        if generation_prompt and self.continue_final_message:
            raise bad_field(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other: leave out one of them",
            )
        return {
            **template_variables(self.chat_template_kwargs),
            "chat_template": self.chat_template,
            "add_generation_prompt": generation_prompt,
            "continue_final_message": self.continue_final_message,
            "tools": tool_use(self.tools, None, True).for_template,
        }


class DetokenizeRequest(RequestBody):
    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]
