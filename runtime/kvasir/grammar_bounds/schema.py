"""Checks a JSON Schema and all schemas that it uses, and adapts it."""

from typing import Any, Final

import orjson

from kvasir.grammar_bounds.bad_grammar import BadGrammar, bad_keyword
from kvasir.grammar_bounds.disjoint import Disjointness
from kvasir.grammar_bounds.endless import endless_schemas
from kvasir.grammar_bounds.keyword_checks import check_keywords
from kvasir.grammar_bounds.limits import MAX_NESTED_LEVELS, MAX_SCHEMA_BYTES
from kvasir.grammar_bounds.references import References

Schema = dict[str, Any]
_MAX_COMPARED_BRANCHES: Final = 200  # of one oneOf: pairs are compared


def adapt_schema(text: str) -> str:
    """Return the schema for llguidance. Raises BadGrammar."""
    return orjson.dumps(adapted(parse_schema(text))).decode()


def parse_schema(text: str) -> Any:
    """Parse JSON. Raises BadGrammar if it is malformed, too large or too deep."""
    size = len(text.encode(errors="surrogatepass")) if len(text) <= MAX_SCHEMA_BYTES else len(text)
    if size > MAX_SCHEMA_BYTES:
        raise BadGrammar(
            f"the JSON schema has {size} bytes, and at most {MAX_SCHEMA_BYTES} are allowed: split it or shorten "
            "its descriptions"
        )
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadGrammar(f"the JSON schema is not valid JSON: {error}") from None
    _check_depth(value)
    return value


def adapted(root: Any) -> Any:
    """Check and adapt a schema in place, and return it. Raises BadGrammar."""
    if root is True:
        return {}
    if root is False:
        raise BadGrammar("the JSON schema is false, which no output matches: use another one")
    if not isinstance(root, dict):
        raise BadGrammar(f"the JSON schema is not an object but {orjson.dumps(root).decode()[:60]}: use an object")
    _Walk(root).run()
    return root


class _Walk:
    """One pass over a schema, which visits each schema inside once."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._references = References(root)
        self._visited: dict[int, Schema] = {}

    def run(self) -> None:
        waiting: list[tuple[Any, str]] = [(self._root, "#")]
        while waiting:
            schema, path = waiting.pop()
            if isinstance(schema, bool) or id(schema) in self._visited:
                continue
            self._visited[id(schema)] = schema
            check_keywords(schema, path)
            self._check_identifier(schema, path)
            waiting += self._parts(schema, path)
        disjointness = Disjointness(self._resolve)
        for schema in self._visited.values():
            self._adapt_one_of(schema, disjointness)
        self._check_ends()

    def _parts(self, schema: Schema, path: str) -> list[tuple[Any, str]]:
        parts: list[tuple[Any, str]] = []
        if "$ref" in schema:
            target = self._references.resolve(schema["$ref"], path)
            if not isinstance(target, dict | bool):
                raise bad_keyword(path, "$ref", f"refers to {schema['$ref']!r}, which is not a schema")
            parts.append((target, schema["$ref"]))
        for keyword in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
            value = schema.get(keyword)
            if isinstance(value, list):
                parts += [(part, f"{path}/{keyword}/{index}") for index, part in enumerate(value)]
        for keyword in ("properties", "patternProperties"):
            parts += [(part, f"{path}/{keyword}/{name}") for name, part in schema.get(keyword, {}).items()]
        for keyword in ("items", "additionalItems", "additionalProperties"):
            if isinstance(schema.get(keyword), dict):
                parts.append((schema[keyword], f"{path}/{keyword}"))
        return parts

    def _check_identifier(self, schema: Schema, path: str) -> None:
        if path != "#" and "$id" in schema and not schema["$id"].startswith("#"):
            raise bad_keyword(
                path, "$id", "changes what references mean, and is supported at the root only: remove it"
            )
        if path == "#":  # llguidance would look it up; local references do not need it
            schema.pop("$id", None)
            if not schema.get("$schema", "").startswith(("http://json-schema.org/", "https://json-schema.org/")):
                schema.pop("$schema", None)

    def _adapt_one_of(self, schema: Schema, disjointness: Disjointness) -> None:
        """Write `oneOf` as `anyOf` if its branches exclude each other."""
        # llguidance itself does not look into references.
        branches = schema.get("oneOf", ())
        if "anyOf" in schema or not branches or len(branches) > _MAX_COMPARED_BRANCHES:
            return
        for index, branch in enumerate(branches):
            if not all(disjointness.is_certain(branch, other) for other in branches[index + 1 :]):
                return
        items = [("anyOf" if keyword == "oneOf" else keyword, value) for keyword, value in schema.items()]
        schema.clear()
        schema.update(items)

    def _check_ends(self) -> None:
        endless = endless_schemas(self._visited, self._resolve)
        if id(self._root) in endless:
            raise BadGrammar(
                "JSON Schema keyword '$ref' makes the schema endless: no finite value matches it. Make a property "
                "optional, allow an empty array, or add a branch without the reference",
                "$ref",
            )

    def _resolve(self, reference: str) -> Any:
        return self._references.resolve(reference, "#")


def _check_depth(value: Any) -> None:
    level, depth = ([value] if isinstance(value, dict | list) else []), 0
    while level:
        depth += 1
        if depth > MAX_NESTED_LEVELS + 1:
            raise BadGrammar(
                f"the JSON schema is nested more than {MAX_NESTED_LEVELS} levels deep: move parts to $defs"
            )
        level = [
            part
            for outer in level
            for part in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(part, dict | list)
        ]
