"""The body of POST /v1/responses, and its conversation for the chat template."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BeforeValidator, Field

from kvasir.client.input.grammar_source import ANY_OBJECT, GrammarSource
from kvasir.frontend.endpoints.responses.input_items import InputHistory, Item
from kvasir.frontend.endpoints.responses.tools import FUNCTION, Choice, ResponseTool, repeat_choice, tool_use
from kvasir.frontend.endpoints.tool_use import ToolUse
from kvasir.frontend.errors import bad_field
from kvasir.frontend.request_bodies.request_body import BodyPart, RequestBody, at_most
from kvasir.request.params import SamplingFields

# Each costs some microseconds on the event loop.
MAX_ITEMS: Final = 8192
# OpenAI's limit.
MAX_METADATA: Final = 16

# Entry of `include` for log probabilities. What other entries add does not occur without tools.
LOGPROBS: Final = "message.output_text.logprobs"


def _refuse_state(value: object) -> None:
    raise ValueError("not supported, because this server stores no responses: send the whole conversation in input")


Stateless = Annotated[None, BeforeValidator(_refuse_state)]
"""A field that refers to something stored."""


class TextFormat(BodyPart):
    """The form of the text. `name` and `description` are labels of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    """Without effect: a schema is always enforced."""

    def repeat(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        schema = {"type": self.type, "name": self.name, "schema": self.json_schema}
        return {**schema, "description": self.description, "strict": self.strict is not False}


class TextOptions(BodyPart):
    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(BodyPart):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """A variable of the chat template; `none` switches thinking off."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Without effect: the reasoning itself is part of the output."""


class ResponsesRequest(RequestBody):
    """A request whose absent fields have the values of the model's generation_config or the server."""

    not_yet: ClassVar = {
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
    """Most likely tokens to report for each place, with `include: ["message.output_text.logprobs"]`."""
    include: list[str] | None = None
    stream: bool = False
    truncation: Literal["auto", "disabled"] | None = None
    """auto: drop the oldest items of the input if the context is too small for them."""
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    tools: Annotated[list[ResponseTool], Field(fail_fast=True)] = Field(default_factory=list)
    """Functions that the output may call."""
    tool_choice: Choice | None = None
    """Whether the output calls functions: `auto` (the default), `none`, `required`, one by its name, or some of
    them."""
    parallel_tool_calls: bool = True
    """Whether the output may have more than one call."""
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
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def sampling(self) -> SamplingFields:
        return SamplingFields(temperature=self.temperature, top_p=self.top_p)

    def check(self) -> None:
        if self.top_logprobs and self.wanted_logprobs is None:
            raise bad_field("top_logprobs", f'top_logprobs needs include: ["{LOGPROBS}"]')

    def template_messages(self) -> list[dict[str, Any]]:
        history = InputHistory(self.instructions)
        items = [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        for index, item in enumerate(items):
            history.add(item, f"input[{index}]")
        return history.messages

    def template_variables(self) -> dict[str, Any]:
        # templates name the effort, or only whether to think
        effort = self.reasoning.effort if self.reasoning is not None else None
        return {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}

    def tool_use(self) -> ToolUse:
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def text_format(self) -> TextFormat:
        given = self.text.format if self.text is not None else None
        return given or TextFormat(type="text")

    def grammar_source(self) -> GrammarSource | None:
        given = self.text_format
        if given.type == "text":
            return None
        if given.type == "json_object":
            return GrammarSource("json", ANY_OBJECT, "text.format")
        for name, value in (("name", given.name), ("schema", given.json_schema)):
            if value in (None, ""):
                raise bad_field(f"text.format.{name}", f"text.format.{name} is missing")
        return GrammarSource("json", given.json_schema, "text.format.schema")

    def repeat_fields(self) -> dict[str, Any]:
        reasoning = self.reasoning or Reasoning()
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "safety_identifier": self.safety_identifier,
            "text": {"format": self.text_format.repeat(), "verbosity": "medium"},
            "tool_choice": repeat_choice(self.tool_choice),
            "tools": [tool.repeat() for tool in self.tools if tool.type == FUNCTION],
            "top_logprobs": self.top_logprobs or 0,
            "truncation": self.truncation or "disabled",
            "user": self.user,
        }
