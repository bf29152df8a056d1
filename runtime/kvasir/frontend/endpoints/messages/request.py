"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from kvasir.client.input.grammar_source import GrammarSource
from kvasir.frontend.endpoints.messages.blocks import Content, MessagesHistory, Turn
from kvasir.frontend.endpoints.tool_use import Function, ToolUse, check_functions, quote, use_all, use_one
from kvasir.frontend.errors import bad_field, needed
from kvasir.frontend.request_bodies.request_body import BodyPart, RequestBody, at_most
from kvasir.request.params import SamplingFields


class ClientTool(BodyPart):
    """A tool that the client runs. `cache_control` and `input_examples` are ignored."""

    type: str = "custom"
    """`custom`. The API's other types are tools that Anthropic defines, and some of them its server runs."""
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    """A JSON Schema of the input."""
    strict: bool = False
    """The input matches `input_schema` in every call."""


class ClientToolChoice(BodyPart):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """Name of the tool, for the type `tool`."""
    disable_parallel_tool_use: bool = False
    """The answer has at most one call."""


def tool_use(tools: Sequence[ClientTool], choice: ClientToolChoice | None) -> ToolUse:
    offered = check_functions([_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)], "tools", "")
    wanted = "auto" if choice is None else choice.type
    if not offered:
        if wanted in ("any", "tool"):
            raise bad_field("tool_choice", f"tool_choice is {wanted!r}, and the request has no tools: add tools")
        return ToolUse()
    parallel = choice is None or not choice.disable_parallel_tool_use
    if choice is not None and choice.type == "tool":
        use = use_one(offered, needed(choice.name, "tool_choice.name"), "tool_choice.name")
    else:
        use = use_all(offered, "required" if wanted == "any" else wanted)
    return replace(use, parallel=parallel)


def _function(tool: ClientTool, path: str) -> Function:
    if tool.type != "custom":
        where = f"{path}.type"
        raise bad_field(
            where, f"{where}: {quote(tool.type)} is not supported, describe the tool with name and input_schema"
        )
    schema = needed(tool.input_schema, f"{path}.input_schema")
    return Function(name=tool.name, description=tool.description, parameters=schema, strict=tool.strict)


# Each costs some microseconds on the event loop.
MAX_MESSAGES: Final = 8192


class OutputFormat(BodyPart):
    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(BodyPart):
    format: OutputFormat | None = None
    """The text is JSON that follows a schema."""
    effort: str | None = None
    """A variable of the chat template, for models that can think more or less."""


class Thinking(BodyPart):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of the thinking, for the type `enabled`; then the model has to answer."""
    display: Literal["summarized", "omitted"] | None = None
    """`omitted`: blocks of thinking have no text."""


class CountTokensRequest(RequestBody):
    """The conversation that both endpoints take."""

    not_yet: ClassVar = {
        "mcp_servers": ([],),
        "container": (),
        # Claude Code sends the second: all thinking is kept.
        "context_management": ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
        "speed": ("standard",),
    }

    model: str | None = None
    system: Content | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True), at_most(MAX_MESSAGES)]
    tools: Annotated[list[ClientTool], Field(fail_fast=True)] = Field(default_factory=list)
    """Tools that the answer may call."""
    tool_choice: ClientToolChoice | None = None
    """Whether the answer calls tools: `auto` (the default), `any`, `tool` with a `name`, or `none`."""
    thinking: Thinking | None = None
    """Whether the model thinks before it answers. None: the chat template decides."""
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older form of `output_config.format`."""
    cache_control: dict[str, Any] | None = None
    """Ignored: the prefix cache is automatic."""

    def check(self) -> None:
        if self.output_format is not None and self.output_config is not None and self.output_config.format:
            raise bad_field(
                "output_format", "output_format is the older form of output_config.format: leave out one of them"
            )
        if self.thinking is not None and self.thinking.type == "enabled":
            needed(self.thinking.budget_tokens, "thinking.budget_tokens")

    def template_messages(self) -> list[dict[str, Any]]:
        if not self.messages:
            raise bad_field("messages", "messages: the list is empty")
        history = MessagesHistory()
        history.add_system(self.system or "")
        for index, turn in enumerate(self.messages):
            history.add(turn, f"messages[{index}]")
        return history.messages

    def template_variables(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the variables for the last message and for thinking. Raises ApiError."""
        # the answer continues the assistant's last message
        continued = messages[-1]["role"] == "assistant"
        if continued:
            self._check_continued(messages[-1])
        variables: dict[str, Any] = {
            "add_generation_prompt": not continued,
            "continue_final_message": continued,
        }
        if self.output_config is not None and self.output_config.effort is not None:
            variables["reasoning_effort"] = self.output_config.effort
        if self.thinking is not None and self.thinking.type != "adaptive":
            variables["enable_thinking"] = self.thinking.type == "enabled"
        return variables

    def _check_continued(self, message: dict[str, Any]) -> None:
        if "tool_calls" in message:
            raise bad_field("messages", "messages: the last message has a tool_use: send its tool_result after it")
        if self._format is not None:
            raise bad_field(
                "messages",
                "messages: an answer with an output format cannot continue the assistant's message: leave it out",
            )

    def tool_use(self) -> ToolUse:
        return tool_use(self.tools, self.tool_choice)

    @property
    def thinking_budget(self) -> int | None:
        enabled = self.thinking is not None and self.thinking.type == "enabled"
        return self.thinking.budget_tokens if self.thinking is not None and enabled else None

    @property
    def hides_thinking(self) -> bool:
        return self.thinking is not None and self.thinking.display == "omitted"

    @property
    def _format(self) -> OutputFormat | None:
        given = self.output_config.format if self.output_config is not None else None
        return given or self.output_format

    def grammar_source(self) -> GrammarSource | None:
        if (given := self._format) is None:
            return None
        name = "output_format" if self.output_format is not None else "output_config.format"
        return GrammarSource("json", given.json_schema, f"{name}.schema")


class MessagesRequest(CountTokensRequest):
    """A request whose absent fields have the values of the model's generation_config."""

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
