"""GET /v1/models and /v1/models/{name}: the names of the one model that is served."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from kvasir.frontend.routing import Routes
from kvasir.frontend.service import Service, service_of

routes = Routes()


@routes.get("/v1/models")
async def list_models(request: Request) -> Response:
    """The names of the model that is served."""
    service = service_of(request)
    return _json({"object": "list", "data": [_model(service, name) for name in service.model_names]})


@routes.get("/v1/models/{name:path}")
async def retrieve_model(request: Request) -> Response:
    """One of them."""
    service = service_of(request)
    return _json(_model(service, service.model_name(request.path_params["name"])))


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "kvasir",
        "root": service.model_source,
        "parent": None,
        "max_model_len": service.llm.max_model_len,
    }


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
