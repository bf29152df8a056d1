"""GET /openapi.json and GET /docs: what this API is, for programs and for people."""

import orjson
from fastapi import Request, Response
from fastapi.responses import HTMLResponse

from kvasir.frontend.endpoints.description.docs_page import render
from kvasir.frontend.endpoints.description.openapi import describe
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import ServiceDep

router = new_router()


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, service: ServiceDep) -> Response:
    document = describe(request.app, with_keys=service.access.keys.needed)
    return Response(orjson.dumps(document), media_type="application/json")


@router.get("/docs", include_in_schema=False)
async def docs(request: Request, service: ServiceDep) -> Response:
    return HTMLResponse(render(describe(request.app, with_keys=service.access.keys.needed)))
