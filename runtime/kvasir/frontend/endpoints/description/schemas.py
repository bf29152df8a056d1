"""JSON schemas of the bodies and answers, for openapi.py: from the structs, and the Schema objects that bodies are
parsed by.

A body is described as types/fields.py takes it: unknown fields are refused, null counts as absent, and a field of a
feature that is not there yet takes only what asks for nothing.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from kvasir.frontend.endpoints.fields import Schema

REFERENCE: Final = "#/components/schemas/{name}"


def components(bodies: Iterable[Schema[Any]], answers: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """The schema of every struct, and of those it consists of, by name."""
    parsed = {schema.struct: schema for body in bodies for schema in _family(body)}
    _, result = msgspec.json.schema_components([*parsed, *answers], ref_template=REFERENCE)
    for struct, schema in parsed.items():
        _as_parsed(result[struct.__name__], schema)
    return result


def _family(schema: Schema[Any]) -> Iterator[Schema[Any]]:
    yield schema
    for child in schema.children.values():
        yield from _family(child)


def _as_parsed(component: dict[str, Any], schema: Schema[Any]) -> None:
    properties = component["properties"]
    required = component.get("required", ())
    texts = _texts(schema.struct)
    for name, described in properties.items():
        if name not in required:
            properties[name] = described = _or_null(described)
        if name in texts:
            described.setdefault("description", texts[name])
    for name, harmless in schema.not_yet.items():
        properties[name] = {"enum": [*harmless, None], "description": "Not supported yet: leave it out"}
    component["additionalProperties"] = False


def _or_null(described: Mapping[str, Any]) -> dict[str, Any]:
    null = {"type": "null"}
    if null in described.get("anyOf", ()):
        return dict(described)
    outside = {key: described[key] for key in ("default", "description") if key in described}
    if "anyOf" in described:
        return {**outside, "anyOf": [*described["anyOf"], null]}
    return {**outside, "anyOf": [{k: v for k, v in described.items() if k not in outside}, null]}


def _texts(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The text that stands below each field in the struct's source, in one line; none where there is no source."""
    result: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        if cls is msgspec.Struct or not issubclass(cls, msgspec.Struct):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(cls))
        except OSError:
            continue
        definition = ast.parse(source).body[0]
        assert isinstance(definition, ast.ClassDef)
        result |= _texts_in(definition)
    return result


def _texts_in(definition: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found
