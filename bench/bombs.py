"""The grammars of grammar_bombs.py: requests that cost a careless compiler much time or memory, or its process."""

import json
from collections.abc import Iterator
from typing import Any, Final

_HUGE: Final = 1_000_000_000
_LARGE_BYTES: Final = 10 * 2**20


def bombs(salt: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and fields of a request. With another salt, no cache has the answer."""
    for name, schema in _schemas(salt).items():
        yield name, _constrained(schema)
    for name, schema in _long_texts(salt).items():
        structured = {"structured_outputs": {"json": schema, "disable_any_whitespace": True}}
        yield f"compact: {name}", {**structured, "max_tokens": 64}
    for length in (15_000, 250):  # the masks lead through the first, and the second is forced
        constant = salt + "=" * (length - len(salt))
        yield f"a constant of {length:,} signs", {**_constrained({"const": constant}), "max_tokens": 64}
    for name, pattern in _REGEXES.items():
        yield f"regex: {name}", {"structured_outputs": {"regex": f"({salt})?{pattern}"}}
        text = {"type": "object", "properties": {salt: {"type": "string", "pattern": f"^{pattern}$"}}}
        yield f"pattern: {name}", {"structured_outputs": {"json": text}}
    for name, grammar in _GRAMMARS.items():
        yield f"grammar: {name}", {"structured_outputs": {"grammar": grammar.replace("SALT", salt)}}
    yield "choice: 20,000 texts", {"structured_outputs": {"choice": [f"{salt} {n}" for n in range(20_000)]}}


def _constrained(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "bomb", "schema": schema}}}


def _schemas(salt: str) -> dict[str, Any]:
    def array(**limits: int) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "integer"}, "description": salt, **limits}

    return {
        "minItems 10⁹": array(minItems=_HUGE),
        "maxItems 10⁹": array(maxItems=_HUGE),
        "minItems and maxItems 10⁹": array(minItems=_HUGE, maxItems=_HUGE),
        "minLength 10⁹": {"type": "string", "minLength": _HUGE, "description": salt},
        "maxLength 10⁹": {"type": "string", "maxLength": _HUGE, "description": salt},
        "minItems 1,000 in five levels": _repeated(salt),
        "minProperties 10⁹": {"type": "object", "minProperties": _HUGE, "description": salt},
        "nested optional properties": _optional(salt, width=8, depth=5),
        "2,000 optional properties": _object({f"{salt}{n}": {"type": "integer"} for n in range(2000)}),
        "20,000 enum values": {"enum": [f"{salt} {n}" for n in range(20_000)]},
        "depth 400": _nested(salt, 400),
        "depth 20,000": _nested(salt, 20_000),
        "anyOf of 4⁶ branches": _branches(salt, 6),
        "allOf of 2,000 parts": {"allOf": [_object({f"{salt}{n}": {"type": "null"}}) for n in range(2000)]},
        "oneOf of 500 overlapping": {"oneOf": [{"type": "string", "pattern": f"{salt}|{n}"} for n in range(500)]},
        "$ref to itself": {"$ref": "#", "description": salt},
        "$ref in a circle": {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
            "description": salt,
        },
        "$ref doubled 40 times": _doubled(salt, 40),
        "recursive tree": {
            "$ref": "#/$defs/node",
            "$defs": {"node": _object({salt: {"type": "array", "items": {"$ref": "#/$defs/node"}}})},
        },
        "multipleOf 10⁻⁹⁹": {"type": "number", "multipleOf": 1e-99, "description": salt},
        "maximum of 4,000 digits": {"type": "integer", "minimum": 0, "maximum": 10**4000, "description": salt},
        "10 MB in a description": {"type": "integer", "description": salt * (_LARGE_BYTES // len(salt))},
        "10 MB of properties": _large(salt),
    }


def _long_texts(salt: str) -> dict[str, Any]:
    # After a choice, where a trial may not see them.
    array = {"type": "array", "items": {"const": salt * 100}, "minItems": 5000, "maxItems": 5000}
    required = {**_object({salt: array}), "required": [salt]}
    return {"5,000 constants": {"anyOf": [{"type": "null"}, array]}, "in an object": {"anyOf": [array, required]}}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _repeated(salt: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "description": salt}
    for _ in range(5):
        schema = {"type": "array", "items": schema, "minItems": 1000, "maxItems": 1000}
    return schema


def _optional(salt: str, width: int, depth: int) -> dict[str, Any]:
    if depth == 0:
        return {"type": "integer"}
    inner = _optional(salt, width, depth - 1)
    return _object({f"{salt}{depth}{number}": inner for number in range(width)})


def _nested(salt: str, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer", "description": salt}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _branches(salt: str, depth: int) -> dict[str, Any]:
    if depth == 0:
        return {"type": "integer", "description": salt}
    return {"anyOf": [_object({f"{salt}{number}": _branches(salt, depth - 1)}) for number in range(4)]}


def _doubled(salt: str, times: int) -> dict[str, Any]:
    definitions = {
        f"d{n}": _object({f"{salt}l": {"$ref": f"#/$defs/d{n + 1}"}, f"{salt}r": {"$ref": f"#/$defs/d{n + 1}"}})
        for n in range(times)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**definitions, f"d{times}": {"type": "null"}}}


def _large(salt: str) -> dict[str, Any]:
    one = len(json.dumps({f"{salt}{_LARGE_BYTES}": {"type": "integer"}}))
    return _object({f"{salt}{number}": {"type": "integer"} for number in range(_LARGE_BYTES // one)})


_REGEXES: Final = {
    "(a+)+": "(a+)+b",
    "a?³⁰a³⁰": "a?" * 30 + "a" * 30,
    "(a|aa|…)* of 200": f"({'|'.join('a' * n for n in range(1, 200))})*b",
    "nested repetitions": "((([a-z]{1,500}){1,500}){1,500}){1,500}",
    "exponential automaton": "(a|b)*a(a|b){60}",
    "any of 10⁶": r"\w{1000000}",
    "Unicode classes": r"(\p{L}|\p{N}){0,4000}x",
    "3,000 brackets": "(" * 3000 + "a" + ")" * 3000,
}
_GRAMMARS: Final = {
    "left recursion in EBNF": 'root ::= root "SALT" | "a"',
    "left recursion in Lark": 'start: start "SALT" | "a"',
    "circle without a text": "root ::= other\nother ::= root\n# SALT",
    "endless text behind a choice": 'start: "!" | "~" y\ny: "' + "SALT" * 50 + '" y',
    "10,000 signs 500 times": 'start: "!" | "~" x{500}\nx: "SALT' + "=" * 10_000 + '"',
    "ambiguous": 'root ::= root root | "SALT" | ""',
    "nested repetitions": 'root ::= (("SALT"{0,1000}){0,1000}){0,1000}',
    "20,000 rules": 'root ::= r0 "SALT"\n'
    + "\n".join(f'r{n} ::= r{n + 1} | "{n}"' for n in range(20_000))
    + '\nr20000 ::= "x"',
    "terminals in a Lark of 5,000": "start: "
    + " | ".join(f"T{n}" for n in range(5000))
    + "".join(f'\nT{n}: "SALT{n}"' for n in range(5000)),
}
