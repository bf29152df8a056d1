"""The body of POST /v1/responses, and the conversation that the chat template gets from it.

The server stores no responses: a client sends the whole history with every request.
"""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field

from kvasir.frontend.endpoints.list_limits import at_most
from kvasir.frontend.endpoints.request_body import BodyPart, RequestBody
from kvasir.frontend.errors import bad_field
from kvasir.params import SamplingFields

MAX_ITEMS: Final = 8192
"""Of the input. Each costs some microseconds on the event loop."""
MAX_PARTS: Final = 8192
"""Of one item."""

MAX_METADATA: Final = 16
"""OpenAI's limit."""

LOGPROBS: Final = "message.output_text.logprobs"
"""The entry of `include` that asks for log probabilities. What other entries add does not occur without tools."""

_ROLES: Final = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
"""Role of a message → role in the chat template, which has no developer."""
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})
_TOOL_ITEMS: Final = frozenset(
    {"function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
)


def _refuse_state(value: object) -> None:
    raise ValueError("not supported, because this server stores no responses: send the whole conversation in input")


Stateless = Annotated[None, BeforeValidator(_refuse_state)]
"""A field that refers to something stored."""


class Part(BodyPart):
    """A part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(BodyPart):
    """An item of the input: a message, or an output item of an earlier response."""

    type: str = "message"
    role: str | None = None
    content: Annotated[str | Annotated[list[Part], Field(fail_fast=True)] | None, at_most(MAX_PARTS)] = None


class TextFormat(BodyPart):
    type: Literal["text"]


class TextOptions(BodyPart):
    """Options of the text, with the values that ask for nothing."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(BodyPart):
    """The same for reasoning, which is part of the text here."""

    effort: Literal["none"] | None = None
    summary: Literal["auto"] | None = None


class ResponsesRequest(RequestBody):
    """None: the model's generation_config or the server decides."""

    not_yet: ClassVar = {
        "tools": ([],),
        "tool_choice": ("auto", "none"),
        "parallel_tool_calls": (True, False),
        "background": (False,),
        "prompt": (),
        "moderation": (),
        "context_management": ([],),
        "service_tier": ("auto", "default"),
    }

    model: str | None = None
    input: Annotated[str | Annotated[list[Item], Field(fail_fast=True)], at_most(MAX_ITEMS)]
    instructions: str | None = None
    """A system message before the input."""
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """With `include: ["message.output_text.logprobs"]`: most likely tokens to report for each place."""
    include: list[str] | None = None
    stream: bool = False
    truncation: Literal["auto", "disabled"] | None = None
    """auto: drop the oldest items of the input if the context is too small for them."""
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    previous_response_id: Stateless = None
    conversation: Stateless = None
    # Accepted without any effect: labels for the client's own records, and what needs a store.
    store: bool | None = None
    max_tool_calls: int | None = None
    metadata: Annotated[dict[str, str], at_most(MAX_METADATA)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def wanted_logprobs(self) -> int | None:
        """The number of most likely tokens to report per position; None: no log probabilities."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def sampling(self) -> SamplingFields:
        return SamplingFields(temperature=self.temperature, top_p=self.top_p)

    def check(self) -> None:
        """Raise ApiError for fields that do not go together."""
        if self.top_logprobs and self.wanted_logprobs is None:
            raise bad_field("top_logprobs", f'top_logprobs needs include: ["{LOGPROBS}"]')

    def template_messages(self) -> list[dict[str, str]]:
        """Return the conversation, with texts as contents. Raises ApiError for what has no text."""
        system = [self.instructions] if self.instructions else []
        messages: list[dict[str, str]] = []
        if isinstance(self.input, str):
            return [*_as_system(system), {"role": "user", "content": self.input}]
        for index, item in enumerate(self.input):
            message = _message(item, f"input[{index}]")
            if message is None:
                continue
            if message["role"] == "system" and not messages:
                system.append(message["content"])  # many templates take one system message, at the beginning
            else:
                messages.append(message)
        if not any(message["role"] != "system" for message in messages):
            raise bad_field("input", "input holds no message of a user: send at least one")
        return [*_as_system(system), *messages]


def _as_system(texts: list[str]) -> list[dict[str, str]]:
    return [{"role": "system", "content": "\n".join(texts)}] if texts else []


def _message(item: Item, path: str) -> dict[str, str] | None:
    """Return a message of the conversation; None for an item that adds nothing to it."""
    if item.type == "reasoning":
        return None
    if item.type != "message":
        raise bad_field(f"{path}.type", f"{path}.type: {_problem(item.type)}")
    if item.role not in _ROLES:
        raise bad_field(f"{path}.role", f"{path}.role: {item.role!r} is not a role: use one of {', '.join(_ROLES)}")
    if item.content is None:
        raise bad_field(f"{path}.content", f"{path}.content is missing")
    if isinstance(item.content, str):
        return {"role": _ROLES[item.role], "content": item.content}
    texts = [_text(part, f"{path}.content[{index}]") for index, part in enumerate(item.content)]
    return {"role": _ROLES[item.role], "content": "\n".join(texts)}


def _problem(type: str) -> str:
    if type in _TOOL_ITEMS:
        return f"{type!r} is not supported yet: tools come later"
    if type == "item_reference":
        return "'item_reference' is not supported: this server stores no items; send the item itself"
    return f"{type!r} is not supported: use 'message'"


def _text(part: Part, path: str) -> str:
    name = "refusal" if part.type == "refusal" else "text"
    if part.type not in _TEXT_PARTS and name == "text":
        raise bad_field(f"{path}.type", f"{path}.type: {part.type!r} is not supported: the model reads text only")
    text: str | None = getattr(part, name)
    if text is None:
        raise bad_field(f"{path}.{name}", f"{path}.{name} is missing")
    return text
