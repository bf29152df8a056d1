"""GET /openapi.json, and GET /docs: Swagger UI from an installed package, so that it needs no other host."""

import base64
import hashlib
import re
from collections.abc import Set
from typing import Any, Final

import orjson
from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from msgspec import Struct
from msgspec.json import schema_components
from starlette.exceptions import HTTPException

from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.errors import ErrorAnswer, MessageErrorAnswer, has_path
from kvasir.frontend.middleware import OPEN
from kvasir.frontend.page.page_files import DOCS_FILES, SAME_ORIGIN, guarded, send_file
from kvasir.frontend.routing import SCHEMA_REFERENCE, LeanApp, LeanRoute, new_router
from kvasir.frontend.service import ServiceDep

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


router = new_router()


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, service: ServiceDep) -> Response:
    document = describe(request.app, with_keys=service.access.keys.needed)
    return Response(orjson.dumps(document), media_type="application/json")


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    response = get_swagger_ui_html(
        openapi_url="openapi.json",
        title=f"{request.app.title} {request.app.version}",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/icon.svg",
        swagger_ui_parameters={
            "deepLinking": True,
            "defaultModelsExpandDepth": 0,
            "tryItOutEnabled": True,
            "validatorUrl": None,  # otherwise it asks a server on the internet
        },
    )
    response.headers.update(guarded(_policy(bytes(response.body).decode())))
    return response


def _policy(html: str) -> str:
    # Only the inline scripts of this page are allowed. Swagger UI sets styles on elements.
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in scripts
    )
    return f"{SAME_ORIGIN}; script-src 'self' {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data:"


@router.get("/docs/{name}", include_in_schema=False)
async def docs_file(request: Request, name: str) -> Response:
    path = DOCS_FILES.get(request.scope["path"])
    if path is None:
        raise HTTPException(404)
    return send_file(request, path)
