"""/openapi.json: FastAPI's description of the routes, with the bodies that the routes parse themselves."""

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from kvasir.frontend.types.chat import ChatRequest
from kvasir.frontend.types.completions import CompletionRequest

BODIES = {"/v1/completions": CompletionRequest, "/v1/chat/completions": ChatRequest}


def describe(app: FastAPI) -> dict[str, Any]:
    """Made anew each time: it takes some milliseconds and is rarely asked for."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas, components = msgspec.json.schema_components(
        BODIES.values(), ref_template="#/components/schemas/{name}"
    )
    for path, schema in zip(BODIES, schemas, strict=True):
        content = {"application/json": {"schema": schema}}
        document["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
    document.setdefault("components", {}).setdefault("schemas", {}).update(components)
    return document
