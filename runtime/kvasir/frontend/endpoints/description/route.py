"""GET /openapi.json and GET /docs: what this API is, for programs and for people."""

import orjson
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from kvasir.frontend.endpoints.description.docs_page import render
from kvasir.frontend.endpoints.description.openapi import describe
from kvasir.frontend.routing import Routes
from kvasir.frontend.service import service_of

routes = Routes()


@routes.get("/openapi.json")
async def openapi(request: Request) -> Response:
    document = describe(request.app, with_keys=service_of(request).keys.needed)
    return Response(orjson.dumps(document), media_type="application/json")


@routes.get("/docs")
async def docs(request: Request) -> Response:
    return HTMLResponse(render(describe(request.app, with_keys=service_of(request).keys.needed)))
