"""The OpenAPI document: FastAPI's own, with structs as answers and the keys that this server needs."""

from collections.abc import Set
from typing import Any, Final

from msgspec import Struct
from msgspec.json import schema_components

from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.error_forms import MessageErrorAnswer, has_path
from kvasir.frontend.errors import ErrorAnswer
from kvasir.frontend.middleware import OPEN
from kvasir.frontend.routing import SCHEMA_REFERENCE, LeanApp, LeanRoute

NEEDS_KEY: Final[list[dict[str, list[str]]]] = [{"key": []}]
# FastAPI's answer to a bad field; here it is a 400 with OpenAI's error object.
_NEVER_ANSWERED: Final = "422"
_OF_IT: Final = ("HTTPValidationError", "ValidationError")


def describe(app: LeanApp, with_keys: bool) -> dict[str, Any]:
    """Return the document, made at the first call."""
    if app.openapi_schema is None:
        structs = {struct for route in app.routes if isinstance(route, LeanRoute) for struct in route.structs}
        _complete(app.openapi(), structs, with_keys)
    assert app.openapi_schema is not None
    return app.openapi_schema


def _complete(document: dict[str, Any], structs: Set[type[Struct]], with_keys: bool) -> None:
    components = document["components"]
    for name in _OF_IT:
        components["schemas"].pop(name, None)
    in_order = sorted(structs, key=lambda struct: struct.__name__)
    _, schemas = schema_components(in_order, ref_template=SCHEMA_REFERENCE)
    if same := schemas.keys() & components["schemas"].keys():
        raise TypeError(f"a body and an answer share a name: {sorted(same)}")
    components["schemas"] |= schemas
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop(_NEVER_ANSWERED, None)
            if with_keys and path not in OPEN:
                operation["security"] = NEEDS_KEY
                operation["responses"]["401"] = _unauthorized(path)


def _unauthorized(path: str) -> dict[str, Any]:
    model = MessageErrorAnswer if has_path(path) else ErrorAnswer
    content = {"application/json": {"schema": {"$ref": SCHEMA_REFERENCE.format(name=model.__name__)}}}
    return {"description": errors(401)[401]["description"], "content": content}
