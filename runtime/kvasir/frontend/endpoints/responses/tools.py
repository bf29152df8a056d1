"""The fields `tools` and `tool_choice` of POST /v1/responses."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from kvasir.frontend.endpoints.tool_use import (
    Function,
    ToolUse,
    check_functions,
    check_number,
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
from kvasir.process.seldom_log import SeldomLog

_log = SeldomLog(logging.getLogger(__name__))

FUNCTION: Final = "function"
_MAX_LOGGED_TYPES: Final = 8


class ResponseTool(BodyPart):
    type: str
    """`function`. Other types, which OpenAI's server runs, are left out next to functions, and rejected alone."""
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments; without it there are none."""
    strict: bool | None = None
    """The arguments match `parameters` in every call. Default: true."""

    def repeat(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict is not False,
        }


class AllowedFunction(BodyPart):
    type: str
    """`function`."""
    name: str | None = None


class ResponseToolChoice(BodyPart):
    type: str
    """`function` or `allowed_tools`."""
    name: str | None = None
    """Name of the function."""
    mode: Literal["auto", "required"] | None = None
    """Whether the output has to call one of `allowed_tools`."""
    tools: list[AllowedFunction] | None = None
    """The list of `allowed_tools`."""

    def repeat(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


Choice = Literal["none", "auto", "required"] | ResponseToolChoice


def tool_use(tools: Sequence[ResponseTool], choice: Choice | None, parallel: bool) -> ToolUse:
    check_number(tools, "tools")
    places = [index for index, tool in enumerate(tools) if tool.type == FUNCTION]
    if not places:
        places = list(range(len(tools)))
    elif len(places) < len(tools):
        # Agents list the tools of OpenAI's server next to their own, whether or not the server has them.
        others = ", ".join(
            sorted({quote(tool.type) for tool in tools if tool.type != FUNCTION})[:_MAX_LOGGED_TYPES]
        )
        _log.warning(f"a request has tools of types that the model is not offered: {others}", about="tools")
    offered = check_functions([_function(tools[index], f"tools[{index}]") for index in places], "tools", "", places)
    if isinstance(choice, ResponseToolChoice):
        use = _chosen(offered, choice)
    elif not offered and choice == "required":
        raise bad_field("tool_choice", "tool_choice is 'required', and the request has no tools: add tools")
    else:
        use = use_all(offered, choice)
    return replace(use, parallel=parallel) if offered else ToolUse()


def repeat_choice(choice: Choice | None) -> str | dict[str, Any]:
    return choice.repeat() if isinstance(choice, ResponseToolChoice) else choice or "auto"


def _chosen(offered: tuple[Tool, ...], choice: ResponseToolChoice) -> ToolUse:
    if choice.type == "function":
        return use_one(offered, needed(choice.name, "tool_choice.name"), "tool_choice.name")
    if choice.type != "allowed_tools":
        path = "tool_choice.type"
        raise bad_field(path, f"{path}: {quote(choice.type)} is not supported, use 'function' or 'allowed_tools'")
    mode = ToolChoice.REQUIRED if choice.mode == "required" else ToolChoice.AUTO
    names = []
    for index, tool in enumerate(choice.tools or ()):
        path = f"tool_choice.tools[{index}]"
        check_type(tool.type, "function", f"{path}.type")
        names.append((needed(tool.name, f"{path}.name"), f"{path}.name"))
    return use_some(offered, mode, names, "tool_choice.tools")


def _function(tool: ResponseTool, path: str) -> Function:
    if tool.type != FUNCTION:
        where = f"{path}.type"
        raise bad_field(
            where, f"{where}: {quote(tool.type)} is not supported, this server runs no tools itself: use 'function'"
        )
    return Function(
        name=needed(tool.name, f"{path}.name"),
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict is not False,
    )
