"""The fields `tools` and `tool_choice` of a chat, and OpenAI's older `functions` and `function_call`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import WithJsonSchema

from kvasir.frontend.endpoints.tool_use import (
    Function,
    ToolUse,
    check_functions,
    check_type,
    quote,
    use_all,
    use_one,
    use_some,
)
from kvasir.frontend.errors import bad_field, needed
from kvasir.frontend.parsers import ToolChoice
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.request_bodies.request_body import BodyPart


class FunctionTool(BodyPart):
    type: str
    """`function`."""
    function: Function | None = None


class FunctionName(BodyPart):
    name: str


class NamedTool(BodyPart):
    type: str
    """`function`."""
    function: FunctionName


class AllowedTools(BodyPart):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class ChosenTools(BodyPart):
    type: str
    """`function` or `allowed_tools`."""
    function: FunctionName | None = None
    """The function that the answer calls, for `function`."""
    allowed_tools: AllowedTools | None = None
    """The tools that the answer may call, for `allowed_tools`."""


_MODES: Final = ("none", "auto", "required")
_OLDER_MODES: Final = ("none", "auto")
Choice = Annotated[str, WithJsonSchema({"enum": [*_MODES]})] | ChosenTools
OlderChoice = Annotated[str, WithJsonSchema({"enum": [*_OLDER_MODES]})] | FunctionName


def tool_use(tools: Sequence[FunctionTool], choice: Choice | None, parallel: bool) -> ToolUse:
    _check_mode(choice, _MODES, "tool_choice")
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    offered = check_functions(functions, "tools", ".function")
    if not offered:
        if choice not in (None, "none", "auto"):
            raise bad_field("tool_choice", "tool_choice is only allowed when tools are specified: add tools")
        return ToolUse()
    return replace(_chosen(offered, choice), parallel=parallel)


def function_use(functions: Sequence[Function], choice: OlderChoice | None) -> ToolUse:
    _check_mode(choice, _OLDER_MODES, "function_call")
    offered = check_functions(functions, "functions", "")
    if not offered:
        if choice not in (None, "none", "auto"):
            raise bad_field("function_call", "function_call is only allowed when functions are specified")
        return ToolUse()
    if isinstance(choice, FunctionName):
        use = use_one(offered, choice.name, "function_call.name", "functions")
    else:
        use = _chosen(offered, choice)
    return replace(use, parallel=False, is_older_form=True)


def _chosen(offered: tuple[Tool, ...], choice: Choice | None) -> ToolUse:
    match choice:
        case ChosenTools(type="function", function=function):
            name = needed(function, "tool_choice.function").name
            return use_one(offered, name, "tool_choice.function.name")
        case ChosenTools(type="allowed_tools", allowed_tools=tools):
            return _allowed(offered, needed(tools, "tool_choice.allowed_tools"))
        case ChosenTools(type=other):
            path = "tool_choice.type"
            raise bad_field(path, f"{path}: {quote(other)} is not supported, use 'function' or 'allowed_tools'")
        case _:
            return use_all(offered, choice)


def _allowed(offered: tuple[Tool, ...], given: AllowedTools) -> ToolUse:
    path = "tool_choice.allowed_tools.tools"
    for index, tool in enumerate(given.tools):
        check_type(tool.type, "function", f"{path}[{index}].type")
    names = ((tool.function.name, f"{path}[{index}].function.name") for index, tool in enumerate(given.tools))
    mode = ToolChoice.REQUIRED if given.mode == "required" else ToolChoice.AUTO
    return use_some(offered, mode, names, path)


def _function(tool: FunctionTool, path: str) -> Function:
    check_type(tool.type, "function", f"{path}.type")
    return needed(tool.function, f"{path}.function")


def _check_mode(choice: object, modes: Sequence[str], field: str) -> None:
    if isinstance(choice, str) and choice not in modes:
        raise bad_field(
            field,
            f"{field}: {quote(choice)} is unknown, use {', '.join(modes)} or an object that names a function",
        )
