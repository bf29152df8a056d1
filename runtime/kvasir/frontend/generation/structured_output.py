"""Fields that constrain an output, with vLLM's names: response_format, structured_outputs, guided_*."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, model_validator

from kvasir.client.input.grammar_source import ANY_OBJECT, MAX_CHOICES, GrammarSource
from kvasir.client.input.structural_tags import MAX_FORMATS
from kvasir.frontend.errors import bad_field
from kvasir.frontend.request_bodies.request_body import BodyPart, at_most

CONSTRAINTS: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_JSON_FORMS: Final = frozenset({"json", "structural_tag"})

# `at_most` rejects a longer list before its items are validated.
Choices = Annotated[list[str], Field(fail_fast=True), at_most(MAX_CHOICES)]
_Texts = Annotated[list[str], Field(fail_fast=True), at_most(MAX_FORMATS)]
_Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True), at_most(MAX_FORMATS)]
_Schema = dict[str, Any] | str


class JsonSchemaFormat(BodyPart):
    """`response_format.json_schema`."""

    name: str | None = None
    """A label that OpenAI requires: the answer does not depend on it."""
    description: str | None = None
    """Without effect: the model does not read it."""
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """The JSON Schema that the output validates against."""
    strict: bool | None = None
    """Without effect: the schema is always enforced."""


class ResponseFormat(BodyPart):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    """For the type json_schema."""
    format: dict[str, Any] | None = None
    """For the type structural_tag: XGrammar's format."""
    structures: _Objects | None = None
    """For the type structural_tag, in its older form: objects with `begin`, `schema` and `end`."""
    triggers: _Texts | None = None
    """For the older form: texts with which a structure begins."""


class StructuredOutputs(BodyPart):
    """vLLM's `structured_outputs`."""

    # An unknown field might be a condition.
    model_config = ConfigDict(strict=True, protected_namespaces=(), extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given

    json_: Annotated[_Schema | None, Field(alias="json")] = None
    """A JSON Schema, as an object or as JSON text."""
    regex: str | None = None
    """A regular expression that the whole output matches."""
    choice: Choices | None = None
    """The output is exactly one of these texts."""
    grammar: str | None = None
    """EBNF (GBNF) whose rule `root`, or Lark whose rule `start`, is the whole output."""
    json_object: bool | None = None
    """true: the output is a JSON object."""
    structural_tag: _Schema | None = None
    """Text with tagged parts, as an object or as JSON text."""
    whitespace_pattern: str | None = None
    """A regular expression for the whitespace between the tokens of JSON."""
    disable_any_whitespace: bool = False
    """Write JSON with one space after each comma and colon, and none elsewhere."""
    disable_additional_properties: bool = False
    """Forbid other properties in object schemas that have `properties` and do not say it."""
    disable_fallback: bool = False
    """Without effect: there is one engine for grammars."""
    backend: Annotated[str | None, Field(alias="_backend")] = None
    """Without effect: there is one engine for grammars."""


class OutputFields(BodyPart):
    response_format: ResponseFormat | None = None
    """The output is JSON, or follows a JSON Schema or a structural tag."""
    structured_outputs: StructuredOutputs | None = None
    """The output follows a JSON Schema, a regular expression, a grammar, or is one of some texts."""
    guided_json: dict[str, Any] | str | None = None
    """The older name of structured_outputs.json."""
    guided_regex: str | None = None
    """The older name of structured_outputs.regex."""
    guided_choice: Choices | None = None
    """The older name of structured_outputs.choice."""
    guided_grammar: str | None = None
    """The older name of structured_outputs.grammar."""
    guided_whitespace_pattern: str | None = None
    """The older name of structured_outputs.whitespace_pattern."""


CONSTRAINING_FIELDS: Final = frozenset(OutputFields.model_fields)


def grammar_source(body: OutputFields) -> GrammarSource | None:
    """Return the constraint of a body, or None. Raises ApiError for several, and for missing parts."""
    found = [*_of_response_format(body), *_of_structured_outputs(body), *_of_guided(body)]
    if len(found) > 1:
        first, second = found[0][1], found[1][1]
        raise bad_field(second, f"{first} and {second} exclude each other: give one of them")
    if not found:
        if body.structured_outputs is not None:
            raise bad_field(
                "structured_outputs", f"structured_outputs has no constraint: give one of {', '.join(CONSTRAINTS)}"
            )
        return None
    form, param, value = found[0]
    return GrammarSource(form, value, param, **_options(body, form))


_Found = tuple[str, str, Any]  # form, path of the field, value


def _of_response_format(body: OutputFields) -> Iterator[_Found]:
    given = body.response_format
    if given is None or given.type == "text":
        return
    if given.type == "json_object":
        yield "json", "response_format", ANY_OBJECT
    elif given.type == "structural_tag":
        names = ("format", "structures", "triggers")
        parts = {name: value for name in names if (value := getattr(given, name)) is not None}
        yield "structural_tag", "response_format", parts
    elif given.json_schema is None:
        raise bad_field("response_format.json_schema", "response_format.json_schema is missing")
    elif missing := [name for name in ("name", "schema_") if getattr(given.json_schema, name) in (None, "")]:
        path = f"response_format.json_schema.{missing[0].strip('_')}"
        raise bad_field(path, f"{path} is missing")
    else:
        yield "json", "response_format", given.json_schema.schema_


def _of_structured_outputs(body: OutputFields) -> Iterator[_Found]:
    given = body.structured_outputs
    if given is None:
        return
    for name in CONSTRAINTS:
        value = getattr(given, "json_" if name == "json" else name)
        if value is None or (name == "json_object" and not value):
            continue
        form, value = ("json", ANY_OBJECT) if name == "json_object" else (name, value)
        yield form, f"structured_outputs.{name}", value


def _of_guided(body: OutputFields) -> Iterator[_Found]:
    for form in ("json", "regex", "choice", "grammar"):
        value = getattr(body, f"guided_{form}")
        if value is not None and value != []:  # older clients send an empty list of choices
            yield form, f"guided_{form}", value


def _options(body: OutputFields, form: str) -> Mapping[str, Any]:
    """Raises ApiError for a whitespace pattern without effect."""
    given = body.structured_outputs or StructuredOutputs()
    patterns = {
        name: pattern
        for name, pattern in (
            ("structured_outputs.whitespace_pattern", given.whitespace_pattern),
            ("guided_whitespace_pattern", body.guided_whitespace_pattern),
        )
        if pattern is not None
    }
    for name in patterns:
        if form not in _JSON_FORMS:
            raise bad_field(name, f"{name} is for JSON: leave it out")
        if given.disable_any_whitespace:
            other = "structured_outputs.disable_any_whitespace"
            raise bad_field(name, f"{name} and {other} exclude each other: give one of them")
    return MappingProxyType(
        {
            "any_whitespace": not given.disable_any_whitespace,
            "whitespace_pattern": next(iter(patterns.values()), ""),
            "additional_properties": not given.disable_additional_properties,
        }
    )
