"""The OpenAPI document: FastAPI's own, with the keys that this server needs."""

from typing import Any, Final

from kvasir.frontend.endpoints.answers import ErrorAnswer, errors
from kvasir.frontend.endpoints.messages.answer_schema import MessageErrorAnswer
from kvasir.frontend.endpoints.messages.errors import has_path
from kvasir.frontend.http.middleware import OPEN
from kvasir.frontend.routing import LeanApp

NEEDS_KEY: Final[list[dict[str, list[str]]]] = [{"key": []}]
"""`security` of an operation that needs a key."""
_NEVER_ANSWERED: Final = "422"
"""FastAPI describes its own answer to a bad field; here it is a 400 with OpenAI's error object."""
_OF_IT: Final = ("HTTPValidationError", "ValidationError")


def describe(app: LeanApp, with_keys: bool) -> dict[str, Any]:
    """The OpenAPI document; made once, it takes a while."""
    if app.openapi_schema is None:
        _complete(app.openapi(), with_keys)
    assert app.openapi_schema is not None
    return app.openapi_schema


def _complete(document: dict[str, Any], with_keys: bool) -> None:
    components = document["components"]
    for name in _OF_IT:
        components["schemas"].pop(name, None)
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop(_NEVER_ANSWERED, None)
            if with_keys and path not in OPEN:
                operation["security"] = NEEDS_KEY
                operation["responses"]["401"] = _unauthorized(path)


def _unauthorized(path: str) -> dict[str, Any]:
    model = MessageErrorAnswer if has_path(path) else ErrorAnswer
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    return {"description": errors(401)[401]["description"], "content": content}
