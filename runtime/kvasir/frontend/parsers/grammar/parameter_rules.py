"""Rules for calls in XML and Python, parameter by parameter."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvasir.frontend.parsers.formats.descriptions import Body, Layout
from kvasir.frontend.parsers.formats.schema_types import referenced, schema_types
from kvasir.frontend.parsers.grammar.lark_text import LarkText, either, joined
from kvasir.frontend.parsers.parsed import Tool, UnsupportedChoice
from kvasir.frontend.parsers.streaming.xml_call import (
    FUNCTION_CLOSING,
    FUNCTION_OPENING,
    PARAMETER_OPENING,
    VALUE_END,
)


def call_rule(lark: LarkText, layout: Layout, tool: Tool, *, enforced: bool) -> str:
    """Add the rule of a call and return its name. Raises UnsupportedChoice.

    `enforced`: the arguments match the tool's schema, not only any object.
    """
    schema = arguments_schema(tool) if enforced else {"type": "object"}
    if layout.body is Body.XML:
        body = xml_call(lark, tool, schema)
    elif layout.body is Body.PYTHON:
        body = python_call(lark, tool, schema)
    elif layout.body is Body.JSON_OBJECT:
        # one literal per token of JSON, as in an answer's schema that the output may follow
        parts = ("{", '"name"', ": ", json.dumps(tool.name), ", ", f'"{layout.arguments_key}"', ": ")
        body = joined(*map(lark.literal, parts), lark.json(schema), lark.literal("}"))
    else:
        body = joined(lark.literal(tool.name + layout.name_end), lark.json(schema))
    return lark.rule("call", joined(lark.literal(layout.call_opening), body, lark.literal(layout.call_closing)))


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments. Raises UnsupportedChoice."""
    if not tool.parameters:  # it has none
        return {"type": "object", "additionalProperties": False}
    declared = tool.parameters.get("type", "object")
    if declared != "object" and not (isinstance(declared, list) and "object" in declared):
        raise UnsupportedChoice(
            f"the parameters of the function {tool.name} have the type {declared!r}: they must be an object"
        )
    return {**tool.parameters, "type": "object"}


MAX_DEPTH: Final = 16
_KEY_IN_XML: Final = re.compile(r"[^<>\n]{1,256}")
_KEY_IN_PYTHON: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]{0,255}")
_NOTES: Final = ("title", "description", "default", "examples", "deprecated", "$comment")
_TOP_KEYWORDS: Final = frozenset(
    ("type", "properties", "required", "additionalProperties", "$schema", "$id", "$defs", "definitions", *_NOTES)
)
_TEXT_KEYWORDS: Final = frozenset(("type", "minLength", "maxLength", "nullable", *_NOTES))


def xml_call(lark: LarkText, tool: Tool, schema: Mapping[str, Any]) -> str:
    """Raises UnsupportedChoice."""
    properties, required = _members(tool, schema, _KEY_IN_XML)
    parts = [lark.literal(f"{FUNCTION_OPENING}{tool.name}>\n")]
    for name in properties:
        value = _xml_value(lark, tool, name, schema)
        body = joined(lark.literal(f"{PARAMETER_OPENING}{name}>\n"), value, lark.literal("\n"))
        parameter = lark.rule("parameter", body)
        parts.append(parameter if name in required else f"{parameter}?")
    return joined(*parts, lark.literal(FUNCTION_CLOSING))


def python_call(lark: LarkText, tool: Tool, schema: Mapping[str, Any]) -> str:
    """Raises UnsupportedChoice."""
    properties, required = _members(tool, schema, _KEY_IN_PYTHON)
    first = later = ""
    for name in reversed(properties):
        value = lark.json(part_of(schema, name))
        argument = lark.rule("argument", joined(lark.literal(f"{name}="), value))
        with_comma = joined(lark.literal(", "), argument)
        if name in required:
            first = lark.rule("arguments", joined(argument, later))
            later = lark.rule("more", joined(with_comma, later))
        else:
            begun = joined(argument, later)
            first = lark.rule("arguments", f"{begun} | {first}" if first else f"({begun})?")
            later = lark.rule("more", joined(f"({with_comma})?", later))
    return joined(lark.literal(f"{tool.name}("), first, lark.literal(")"))


def _members(tool: Tool, schema: Mapping[str, Any], key: re.Pattern[str]) -> tuple[list[str], set[str]]:
    """Return the names of all parameters, and of the required ones."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise _invalid(tool)
    if not all(isinstance(name, str) for name in required):
        raise _invalid(tool)
    for keyword in schema:
        if keyword not in _TOP_KEYWORDS:
            raise _unsupported(tool, f"the keyword {keyword!r} of its parameters")
    for name in properties:
        if not key.fullmatch(name) or name != name.strip():
            raise _unsupported(tool, f"the name of its parameter {name[:50]!r}")
    if missing := [name for name in required if name not in properties]:
        raise _unsupported(tool, f"the parameter {missing[0]!r}, which is required and not in `properties`,")
    return list(properties), set(required)


def part_of(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a parameter's schema as a whole document."""
    described = schema["properties"][name]
    if not isinstance(described, dict):
        return {} if described else {"not": {}}
    if '"$ref"' not in json.dumps(described):
        return described
    pointer = name.replace("~", "~0").replace("/", "~1")
    return {"$ref": f"#/$defs/tool/properties/{pointer}", "$defs": {"tool": _moved(dict(schema))}}


def _moved(schema: Any) -> Any:
    """Return a schema with references below #/$defs/tool."""
    if isinstance(schema, list):
        return [_moved(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#/$defs/tool{value[1:]}" if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else value if key in ("enum", "const", "default", "examples")
        else _moved(value)
        for key, value in schema.items()
    }  # fmt: skip


def _xml_value(lark: LarkText, tool: Tool, name: str, schema: Mapping[str, Any]) -> str:
    """Return an expression for a value and its end mark."""
    described = schema["properties"][name]
    types = schema_types(described, dict(schema))
    if types and "string" not in types:
        return joined(lark.json(part_of(schema, name)), lark.literal("\n" + VALUE_END))
    choices = list(_texts(tool, name, described, schema, "null" in types))
    return either([_raw_text(lark, choice) for choice in choices])


def _raw_text(lark: LarkText, choice: "str | tuple[int, int | None]") -> str:
    if isinstance(choice, str):
        return joined(lark.literal(f"{choice}\n{VALUE_END}"))
    least, most = choice
    count = "*" if choice == (0, None) else f"{{{least},{'' if most is None else most}}}"
    end = VALUE_END.replace("/", "\\/")
    body = rf"/(?s:.){count}\n{end}/ & ~/(?s:.*){end}(?s:.+)/"
    terminal = lark.rule("TEXT", body)
    return lark.rule("value", terminal, "[lazy]")


def _texts(
    tool: Tool, name: str, described: Any, root: Mapping[str, Any], nullable: bool, depth: int = 0
) -> Iterable["str | tuple[int, int | None]"]:
    """Yield exact texts, or the minimum and maximum characters of any text."""
    if not isinstance(described, dict) or not described:
        yield 0, None
        return
    if depth > MAX_DEPTH:
        raise _unsupported(tool, f"the nesting of its parameter {name!r}")
    if "enum" in described or "const" in described:
        values = described["enum"] if "enum" in described else [described["const"]]
        if not isinstance(values, list):
            raise _invalid(tool)
        texts = ["null" if value is None else value for value in values if value is None or isinstance(value, str)]
        if any(VALUE_END in text for text in texts) or not texts:
            raise _unsupported(tool, f"the values of its parameter {name!r}")
        yield from texts
        return
    for keyword in ("anyOf", "oneOf"):
        if keyword in described:
            if not isinstance(described[keyword], list):
                raise _invalid(tool)
            branches = [each for each in described[keyword] if "string" in schema_types(each, dict(root))]
            for branch in branches:
                yield from _texts(tool, name, branch, root, nullable, depth + 1)
            if nullable:
                yield "null"
            return
    if "$ref" in described:
        yield from _texts(tool, name, referenced(str(described["$ref"]), dict(root)), root, nullable, depth + 1)
        return
    for keyword in described:
        if keyword not in _TEXT_KEYWORDS:
            raise _unsupported(tool, f"the keyword {keyword!r} of its parameter {name!r}")
    least, most = described.get("minLength", 0), described.get("maxLength")
    if not isinstance(least, int) or not isinstance(most, int | None):
        raise _invalid(tool)
    yield least, most


def _invalid(tool: Tool) -> UnsupportedChoice:
    return UnsupportedChoice(f"the parameters of the function {tool.name} are not a valid JSON Schema")


def _unsupported(tool: Tool, part: str) -> UnsupportedChoice:
    return UnsupportedChoice(
        f"this model's tool format cannot enforce {part} of the function {tool.name}: leave it out, or use "
        "tool_choice auto without strict"
    )
