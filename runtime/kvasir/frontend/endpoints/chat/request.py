"""The body of POST /v1/chat/completions and the messages that the chat template gets."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvasir.client.input.chat_templates import RESERVED_VARIABLES
from kvasir.frontend.endpoints.request_body import BodyPart
from kvasir.frontend.errors import bad_field
from kvasir.frontend.generation.generation_request import GenerationRequest
from kvasir.params import TOP_LOGPROBS

ROLES = ("system", "developer", "user", "assistant")


class TextPart(BodyPart):
    type: str
    text: str | None = None


class Message(BodyPart):
    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None
    name: str | None = None


Messages = Annotated[list[Message], Field(fail_fast=True)]


class ChatRequest(GenerationRequest):
    not_yet: ClassVar = {
        **GenerationRequest.not_yet,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "reasoning_effort": (),
        "verbosity": (),
        "web_search_options": (),
        "documents": ([],),
        "mm_processor_kwargs": ({},),
        "add_special_tokens": (False,),
        "best_of": (1,),
        "include_reasoning": (True,),
    }

    messages: Messages
    max_completion_tokens: int | None = None
    """Wins over `max_tokens`, its older name."""
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=TOP_LOGPROBS.least, le=TOP_LOGPROBS.most)] | None = None
    add_generation_prompt: bool | None = None
    """End the prompt with the beginning of the assistant's answer; the default, unless a message is continued."""
    continue_final_message: bool = False
    """End the prompt with the last message, which the answer continues."""
    echo: bool = False
    """Begin the answer with the last message, if it is the assistant's."""
    chat_template: str | None = None
    """Used instead of the model's template, if the server has --trust-request-chat-template."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further variables of the chat template, for example {"enable_thinking": false}."""

    @property
    def wanted_logprobs(self) -> int | None:
        """The number of most likely tokens to report per position; None: no log probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise bad_field("top_logprobs", "top_logprobs needs logprobs: true")
        if self.continue_final_message and self.add_generation_prompt:
            raise bad_field(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other: leave out one of them",
            )

    def template_variables(self) -> dict[str, Any]:
        return {
            **template_variables(self.chat_template_kwargs),
            "chat_template": self.chat_template,
            "add_generation_prompt": self._wants_generation_prompt,
            "continue_final_message": self.continue_final_message,
        }

    def template_messages(self) -> list[dict[str, Any]]:
        """The messages with their content as one text or a list of texts, a developer's as a system message
        (templates have no other name for it). Raises ApiError for a content without text."""
        return template_messages(self.messages)

    @property
    def echoed(self) -> str:
        """The text before the answer. Raises ApiError for a message without a text."""
        last = self.messages[-1]
        if not self.echo or last.role != "assistant":
            return ""
        content = template_messages([last])[0].get("content") or ""
        return content if isinstance(content, str) else "\n".join(part["text"] for part in content)

    @property
    def _wants_generation_prompt(self) -> bool:
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt


def template_variables(kwargs: dict[str, Any]) -> dict[str, Any]:
    """What a request may give the chat template. Raises ApiError for names that have a meaning of their own."""
    for name in RESERVED_VARIABLES & kwargs.keys():
        path = f"chat_template_kwargs.{name}"
        raise bad_field(path, f"{path} is not supported: a request cannot set the variable {name}")
    return kwargs


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """See ChatRequest.template_messages; /tokenize takes messages too."""
    if not messages:
        raise bad_field("messages", "messages: the list is empty")
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: Message, path: str) -> dict[str, Any]:
    if message.role not in ROLES:
        problem = "is not supported yet" if message.role in ("tool", "function") else "is not a role"
        raise bad_field(f"{path}.role", f"{path}.role: {message.role!r} {problem}: use one of {', '.join(ROLES)}")
    if message.content is None:
        raise bad_field(f"{path}.content", f"{path}.content is missing")
    result: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content if isinstance(message.content, str) else _texts(message.content, path),
    }
    if message.name is not None:
        result["name"] = message.name
    return result


def _texts(parts: list[TextPart], path: str) -> list[dict[str, str]]:
    return [
        {"type": "text", "text": _text_of(part, f"{path}.content[{index}]")} for index, part in enumerate(parts)
    ]


def _text_of(part: TextPart, path: str) -> str:
    if part.type != "text":
        raise bad_field(f"{path}.type", f"{path}.type: {part.type!r} is not supported: the model reads text only")
    if part.text is None:
        raise bad_field(f"{path}.text", f"{path}.text is missing")
    return part.text
