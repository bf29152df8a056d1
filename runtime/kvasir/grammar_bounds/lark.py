"""Checks grammars in Lark, and adapts the JSON schemas inside."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from kvasir.grammar_bounds.bad_grammar import BadGrammar
from kvasir.grammar_bounds.json_options import own_json_options
from kvasir.grammar_bounds.limits import (
    MAX_GRAMMAR_BYTES,
    MAX_GRAMMAR_SCHEMAS,
    MAX_GRAMMAR_SCHEMAS_BYTES,
)
from kvasir.grammar_bounds.schema import adapted, parse_schema
from kvasir.grammar_bounds.special_names import private_name

_LARK_TOKEN: Final = re.compile(
    r"""
    (?: "(?:[^"\\\n]|\\.)*" | //[^\n]* | \#[^\n]* | <\[[^<>\s]*> )
    | (?P<special> <[^<>\s]*> )
    | / (?:[^/\\\n]|\\.)+ /
    | (?P<open_end> ["/] )
    | (?P<json> %json )
    | (?P<options> %llguidance )
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def adapt_lark(text: str, options: Mapping[str, Any]) -> str:
    """Return the grammar with adapted schemas. `options`: of their JSON. Raises BadGrammar."""
    if len(text) > MAX_GRAMMAR_BYTES + MAX_GRAMMAR_SCHEMAS_BYTES:
        raise BadGrammar(
            f"the grammar has {len(text)} characters, and at most {MAX_GRAMMAR_BYTES} outside of its JSON schemas "
            f"and {MAX_GRAMMAR_SCHEMAS_BYTES} inside of them are allowed: shorten it"
        )
    parts, size, place, schemas = [], 0, 0, 0
    while match := _LARK_TOKEN.match(text, place):
        place = match.end()
        parts.append(private_name(match[0]) if match["special"] else match[0])
        size += len(match[0].encode(errors="surrogatepass"))
        check_size(size)
        if match["open_end"]:  # each of many would search the rest of the grammar
            raise BadGrammar(f"the grammar has a {match[0]} that is not closed: close it, or write it in a string")
        if match["json"]:
            schemas += 1
            schema, place = _schema_at(text, place, schemas, options)
            parts.append(" " + schema)
        elif match["options"]:
            options_of_grammar, place = _json_at(text, place, "the options behind %llguidance")
            parts.append(" " + orjson.dumps(_without_forcing(options_of_grammar)).decode())
    return "".join(parts)


def _without_forcing(options: Any) -> dict[str, Any]:
    # The engine decides that option: forced_text.py.
    if not isinstance(options, dict):
        raise BadGrammar("the options behind %llguidance are not an object: correct them")
    return {name: value for name, value in options.items() if name != "no_forcing"}


def _schema_at(text: str, place: int, number: int, options: Mapping[str, Any]) -> tuple[str, int]:
    """Return the adapted schema that begins at `place`, and the place behind the original."""
    if number > MAX_GRAMMAR_SCHEMAS:
        raise BadGrammar(f"the grammar holds more than {MAX_GRAMMAR_SCHEMAS} JSON schemas: use fewer")
    _, end = _json_at(text, place, "a JSON schema in the grammar")
    schema = parse_schema(text[place:end])
    if isinstance(schema, dict) and "x-guidance" in schema:
        options = own_json_options(options, schema.pop("x-guidance"))
    return orjson.dumps({**adapted(schema), "x-guidance": dict(options)}).decode(), end


def _json_at(text: str, place: int, what: str) -> tuple[Any, int]:
    while place < len(text) and text[place].isspace():
        place += 1
    try:
        return json.JSONDecoder().raw_decode(text, place)
    except (ValueError, RecursionError) as error:
        raise BadGrammar(f"{what} cannot be read: {error}") from None


def check_size(size: int) -> None:
    if size > MAX_GRAMMAR_BYTES:
        raise BadGrammar(f"the grammar has more than {MAX_GRAMMAR_BYTES} bytes: shorten it")
