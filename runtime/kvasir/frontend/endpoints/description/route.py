"""GET /openapi.json, and GET /docs: Swagger UI from an installed package, so that it needs no other host."""

import base64
import hashlib
import re

import orjson
from fastapi import Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException

from kvasir.frontend.endpoints.description.openapi import describe
from kvasir.frontend.page.page_files import DOCS_FILES, SAME_ORIGIN, guarded, send_file
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import ServiceDep

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
