"""The fields `tools` and `tool_choice` of Anthropic's API."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from kvasir.frontend.endpoints.tool_use import Function, ToolUse, check_functions, quote, use_all, use_one
from kvasir.frontend.errors import bad_field, needed
from kvasir.frontend.request_bodies.request_body import BodyPart


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
