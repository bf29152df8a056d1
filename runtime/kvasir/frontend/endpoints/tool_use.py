"""The tools of a request and the choice among them, for all APIs."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvasir.frontend.errors import bad_field
from kvasir.frontend.parsers import ToolChoice
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.request_bodies.request_body import BodyPart

# OpenAI's limit.
MAX_TOOLS: Final = 128
MAX_NAME_CHARACTERS: Final = 128
MAX_SCHEMA_DEPTH: Final = 64
# in the parameters of all functions: a template writes them as JSON in one step, in about 1 µs each
MAX_SCHEMA_VALUES: Final = 50_000

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]+")
_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


class Function(BodyPart):
    name: str
    """1 to 128 letters, digits, underscores, hyphens and dots."""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments; without it there are none."""
    strict: bool | None = None
    """The arguments match `parameters` in every call."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and what the answer may do with them."""

    # the chat template gets all of these, whatever the choice
    offered: tuple[Tool, ...] = ()
    callable: tuple[Tool, ...] = ()
    """The tools that the answer may call."""
    choice: ToolChoice = ToolChoice.NONE
    is_named: bool = False
    """The request names one function."""
    parallel: bool = True
    is_older_form: bool = False
    """The request has `functions` instead of `tools`."""

    @property
    def field(self) -> str:
        return "functions" if self.is_older_form else "tools"

    @property
    def for_template(self) -> list[dict[str, Any]] | None:
        return [_template_tool(tool) for tool in self.offered] or None

    def template_tools(self, *, hides_unused: bool) -> list[dict[str, Any]] | None:
        """Return `for_template`; `hides_unused`: without tools that the answer may not call."""
        return None if hides_unused and self.choice is ToolChoice.NONE else self.for_template


NO_TOOLS: Final = ToolUse()


def use_all(offered: tuple[Tool, ...], choice: str | None) -> ToolUse:
    """`choice`: none, auto (or None) or required."""
    match choice:
        case "none":
            return ToolUse(offered)
        case None | "auto":
            return ToolUse(offered, offered, ToolChoice.AUTO)
        case "required":
            return ToolUse(offered, offered, ToolChoice.REQUIRED)
    raise AssertionError(choice)


def use_one(offered: tuple[Tool, ...], name: str, param: str, field: str = "tools") -> ToolUse:
    """Return the use of one function. Raises ApiError. `param`: field of the name."""
    return ToolUse(offered, (_find(offered, name, param, field),), ToolChoice.REQUIRED, is_named=True)


def use_some(offered: tuple[Tool, ...], mode: ToolChoice, names: Iterable[tuple[str, str]], param: str) -> ToolUse:
    """Return the use of some tools. Raises ApiError. `names`: each with its field."""
    found = {name: _find(offered, name, path, "tools") for name, path in names}
    if not found:
        raise bad_field(param, f"{param}: the list is empty, name at least one of the tools")
    return ToolUse(offered, tuple(found.values()), mode)


def check_type(given: str, accepted: str, path: str) -> None:
    if given != accepted:
        raise bad_field(path, f"{path}: {quote(given)} is not supported, use {accepted!r}")


def check_number(tools: Sequence[Any], field: str) -> None:
    if len(tools) > MAX_TOOLS:
        raise bad_field(field, f"{field}: {len(tools)} are too many, give at most {MAX_TOOLS}")


def check_functions(
    functions: Sequence[Function], field: str, within: str, places: Sequence[int] | None = None
) -> tuple[Tool, ...]:
    """Return the tools. Raises ApiError at a limit. `places`: indices in the field, if it has other tools."""
    check_number(functions, field)
    seen: dict[str, str] = {}
    values = 0
    for index, function in zip(range(len(functions)) if places is None else places, functions, strict=True):
        path = f"{field}[{index}]{within}"
        name = function.name
        if len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
            raise bad_field(
                f"{path}.name",
                f"{path}.name: {quote(name)} is not a name of a function: use 1 to {MAX_NAME_CHARACTERS} letters, "
                "digits, underscores, hyphens and dots",
            )
        if name in seen:
            raise bad_field(f"{path}.name", f"{path}.name: {seen[name]} has the name {name!r} already")
        seen[name] = path
        values += _count(function.parameters or {}, f"{path}.parameters")
        if values > MAX_SCHEMA_VALUES:
            raise bad_field(
                f"{path}.parameters",
                f"{field}: the parameters have more than {MAX_SCHEMA_VALUES} values, give fewer or smaller schemas",
            )
    return tuple(_tool(function) for function in functions)


def _find(offered: tuple[Tool, ...], name: str, param: str, field: str) -> Tool:
    for tool in offered:
        if tool.name == name:
            return tool
    raise bad_field(param, f"{param}: {quote(name)} is not among the {field} of this request")


def _count(schema: dict[str, Any], path: str) -> int:
    # by level: recursion would fail on a deep schema
    count = 0
    level: list[Any] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        count += len(level)
        if count > MAX_SCHEMA_VALUES:
            return count
        level = [
            value
            for each in level
            for value in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
        ]
        if not level:
            return count
    raise bad_field(path, f"{path}: the schema has more than {MAX_SCHEMA_DEPTH} levels")


def _tool(function: Function) -> Tool:
    return Tool(function.name, function.description or "", function.parameters or {}, function.strict is True)


def _template_tool(tool: Tool) -> dict[str, Any]:
    # Models were trained with these fields only, and templates expect them.
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters or _NO_PARAMETERS}
    return {"type": "function", "function": function}


def quote(text: str) -> str:
    return repr(text if len(text) <= MAX_NAME_CHARACTERS else text[:MAX_NAME_CHARACTERS] + "…")
