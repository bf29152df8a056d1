"""Rules for one call of one tool, in any body."""

import json
from typing import Any

from kvasir.frontend.parsers.formats.descriptions import Body, Layout
from kvasir.frontend.parsers.grammar.lark_text import LarkText, joined
from kvasir.frontend.parsers.grammar.parameter_rules import python_call, xml_call
from kvasir.frontend.parsers.parsed import Tool
from kvasir.frontend.parsers.tool_choice import UnsupportedChoice


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
