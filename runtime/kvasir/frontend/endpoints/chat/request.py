"""The body of POST /v1/chat/completions, and the variables for the chat template."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvasir.frontend.endpoints.chat.messages import Messages, TemplateFields, template_messages
from kvasir.frontend.endpoints.chat.tools import Choice, FunctionTool, OlderChoice, function_use, tool_use
from kvasir.frontend.endpoints.tool_use import NO_TOOLS, Function, ToolUse
from kvasir.frontend.errors import bad_field, empty_list
from kvasir.frontend.generation.generation_request import GenerationRequest
from kvasir.request.params import TOP_LOGPROBS


class ChatRequest(GenerationRequest, TemplateFields):
    not_yet: ClassVar = {
        **GenerationRequest.not_yet,
        "modalities": (["text"],),
        "audio": (),
        "prediction": (),
        "web_search_options": (),
        "documents": ([],),
        "mm_processor_kwargs": ({},),
        "add_special_tokens": (False,),
        "best_of": (1,),
    }

    messages: Messages
    max_completion_tokens: int | None = None
    """Wins over `max_tokens`, its older name."""
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=TOP_LOGPROBS.least, le=TOP_LOGPROBS.most)] | None = None
    echo: bool = False
    """Begin the answer with the last message, if it is the assistant's."""
    reasoning_effort: str | None = None
    """A variable of the chat template, for models that can think more or less; `none` switches thinking off."""
    include_reasoning: bool = True
    """Whether the answer has the reasoning, as `reasoning_content` and `reasoning`."""
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = None
    """Most tokens of the reasoning; then the model has to answer. -1: no limit."""
    tools: Annotated[list[FunctionTool], Field(fail_fast=True)] = Field(default_factory=list)
    """Functions that the answer may call."""
    tool_choice: Choice | None = None
    """Whether the answer calls tools: `auto` (the default if there are tools), `none`, `required`, the name of one,
    or a list of allowed ones."""
    parallel_tool_calls: bool = True
    """Whether the answer may have more than one call."""
    functions: Annotated[list[Function], Field(fail_fast=True)] = Field(default_factory=list)
    """The older form of `tools`: the answer has `function_call`."""
    function_call: OlderChoice | None = None
    """The older form of `tool_choice`."""
    verbosity: str | None = None
    """Without effect, as in vLLM."""

    @property
    def wanted_logprobs(self) -> int | None:
        """Return the most likely tokens per position, or None."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        super().check()
        if self.use_beam_search:
            self._check_beams()
        for name in ("tools", "functions"):
            if name in self.model_fields_set and not getattr(self, name):
                raise empty_list(name)
        if self.top_logprobs and not self.logprobs:
            raise bad_field("top_logprobs", "top_logprobs needs logprobs: true")

    def tool_use(self) -> ToolUse:
        if not self.functions and self.function_call is None:
            if not self.tools and self.tool_choice is None:
                return NO_TOOLS
            return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)
        if self.tools:
            raise bad_field("functions", "functions is the older form of tools: leave out one of them")
        return function_use(self.functions, self.function_call)

    @property
    def thinking_budget(self) -> int | None:
        """Return the most tokens of the reasoning, or None."""
        # some clients set only the template's variable
        budget = self.thinking_token_budget
        if budget is None:
            given = self.chat_template_kwargs.get("thinking_budget")
            budget = given if isinstance(given, int) and not isinstance(given, bool) else None
        return None if budget is None or budget < 0 else budget

    def _check_beams(self) -> None:
        for name, absent in (
            ("tools", self.tool_choice == "none" or not self.tools),
            ("functions", self.function_call == "none" or not self.functions),
            ("thinking_token_budget", self.thinking_token_budget in (None, -1)),
        ):
            if not absent:
                raise bad_field(name, f"{name} is not supported with use_beam_search: leave out one of them")

    def template_variables(self) -> dict[str, Any]:
        return {**self._effort(), **super().template_variables()}

    def template_messages(self) -> list[dict[str, Any]]:
        return template_messages(self.messages)

    def _effort(self) -> dict[str, Any]:
        # templates name the effort, or only whether to think
        if self.reasoning_effort is None:
            return {}
        return {"reasoning_effort": self.reasoning_effort, "enable_thinking": self.reasoning_effort != "none"}

    @property
    def echoed(self) -> str:
        """Return the text before the answer. Raises ApiError."""
        last = self.messages[-1]
        if not self.echo or last.role != "assistant":
            return ""
        content = template_messages([last])[0].get("content") or ""
        return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
