"""The bodies of POST /v1/messages and /v1/messages/count_tokens, and the conversation in them."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import Field

from kvasir.frontend.endpoints.list_limits import at_most
from kvasir.frontend.endpoints.request_body import BodyPart, RequestBody
from kvasir.frontend.errors import bad_field
from kvasir.params import SamplingFields

MAX_MESSAGES: Final = 8192
"""Each costs some microseconds on the event loop."""
MAX_BLOCKS: Final = 8192
"""Of one message."""

_ROLES: Final = ("user", "assistant", "system")
_TOOL_BLOCKS: Final = frozenset({"tool_use", "tool_result", "server_tool_use", "web_search_tool_result"})
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking"})
"""Blocks of an earlier answer that are not part of the conversation."""


class Block(BodyPart):
    """A block of a message's content. `cache_control` and citations are ignored: the prefix cache is automatic."""

    type: str
    text: str | None = None


Content = Annotated[str | Annotated[list[Block], Field(fail_fast=True)], at_most(MAX_BLOCKS)]


class Turn(BodyPart):
    role: str
    content: Content


class OutputConfig(BodyPart):
    format: Any = None
    effort: str | None = None


class CountTokensRequest(RequestBody):
    """What both endpoints take: a conversation."""

    not_yet: ClassVar = {
        "tools": ([],),
        "tool_choice": ({"type": "auto"}, {"type": "none"}),
        "thinking": ({"type": "disabled"}, {"type": "adaptive"}),
        "mcp_servers": ([],),
        "container": (),
        "context_management": ({"edits": []},),
        "speed": ("standard",),
    }

    model: str | None = None
    system: Content | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True), at_most(MAX_MESSAGES)]
    output_config: OutputConfig | None = None
    cache_control: dict[str, Any] | None = None
    """Ignored: the prefix cache is automatic."""

    def check(self) -> None:
        """Raise ApiError for features that are not there, by the field's name."""
        if self.output_config is not None and self.output_config.format is not None:
            raise bad_field("output_config.format", "output_config.format is not supported yet: leave it out")

    def template_messages(self) -> list[dict[str, str]]:
        """Return the conversation, with texts as contents; neighbours of one role become one message, as this API
        defines it. Raises ApiError for what has no text."""
        if not self.messages:
            raise bad_field("messages", "messages: the list is empty")
        turns: list[tuple[str, list[str]]] = []
        if system := _text(self.system or "", "system"):
            turns.append(("system", [system]))
        for index, message in enumerate(self.messages):
            path = f"messages[{index}]"
            if message.role not in _ROLES:
                names = ", ".join(_ROLES)
                raise bad_field(f"{path}.role", f"{path}.role: {message.role!r} is not a role: use one of {names}")
            text = _text(message.content, f"{path}.content")
            if turns and turns[-1][0] == message.role:
                turns[-1][1].append(text)
            else:
                turns.append((message.role, [text]))
        return [{"role": role, "content": "\n".join(texts)} for role, texts in turns]

    @staticmethod
    def template_variables(messages: list[dict[str, str]]) -> dict[str, bool]:
        """Return how the prompt ends: the answer continues a last message of the assistant."""
        continued = messages[-1]["role"] == "assistant"
        return {"add_generation_prompt": not continued, "continue_final_message": continued}


class MessagesRequest(CountTokensRequest):
    """None: the model's generation_config decides."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 or -1 keeps all tokens."""
    stream: bool = False
    # Accepted without any effect: labels for the client's own records.
    metadata: dict[str, Any] | None = None
    inference_geo: str | None = None
    diagnostics: dict[str, Any] | None = None
    service_tier: str | None = None

    def check(self) -> None:
        super().check()
        if any(not text for text in self.stop_sequences or ()):
            raise bad_field("stop_sequences", "stop_sequences holds an empty string: leave it out")

    @property
    def sampling(self) -> SamplingFields:
        return SamplingFields(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, stop=self.stop_sequences or []
        )


def _text(content: str | list[Block], path: str) -> str:
    if isinstance(content, str):
        return content
    blocks = ((block, f"{path}[{index}]") for index, block in enumerate(content))
    return "\n".join(_text_of(block, where) for block, where in blocks if block.type not in _THOUGHTS)


def _text_of(block: Block, path: str) -> str:
    if block.type in _TOOL_BLOCKS:
        raise bad_field(f"{path}.type", f"{path}.type: {block.type!r} is not supported yet: tools come later")
    if block.type != "text":
        raise bad_field(f"{path}.type", f"{path}.type: {block.type!r} is not supported: the model reads text only")
    if block.text is None:
        raise bad_field(f"{path}.text", f"{path}.text is missing")
    return block.text
