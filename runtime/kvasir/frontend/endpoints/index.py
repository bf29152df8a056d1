"""GET / and GET /v1: the page for browsers, and a few lines of JSON for other clients."""

from typing import Final

from fastapi import Request, Response
from fastapi.responses import RedirectResponse
from msgspec.json import encode
from starlette.exceptions import HTTPException

from kvasir.frontend.endpoints.answers import IndexAnswer
from kvasir.frontend.page.page_files import PAGE, PAGE_FILES, PAGE_POLICY, send_file
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.version import __version__
from kvasir_contract.endpoints import METRICS_PATH

router = new_router()

BY_ACCEPT: Final = {"vary": "Accept"}  # caches keep the answers for browsers and programs apart


@router.get("/", response_model=IndexAnswer)
async def index(request: Request, service: ServiceDep) -> Response:
    """The paths of this server. A browser gets a page."""
    if not _wants_page(request, service):
        return _index(service)
    response = send_file(request, PAGE, PAGE_POLICY)
    response.headers.update(BY_ACCEPT)
    return response


@router.get("/v1", include_in_schema=False)
async def api(request: Request, service: ServiceDep) -> Response:
    """The address that `kvasir serve` prints."""
    return RedirectResponse("./", headers=BY_ACCEPT) if _wants_page(request, service) else _index(service)


@router.get("/v1/", include_in_schema=False)
async def api_folder(request: Request, service: ServiceDep) -> Response:
    return RedirectResponse("../", headers=BY_ACCEPT) if _wants_page(request, service) else _index(service)


@router.get("/page/{name}", include_in_schema=False)
async def page_file(request: Request, service: ServiceDep, name: str) -> Response:
    path = PAGE_FILES.get(request.scope["path"])
    if path is None or not service.has_page:
        raise HTTPException(404)
    return send_file(request, path)


def _wants_page(request: Request, service: Service) -> bool:
    return service.has_page and "text/html" in request.headers.get("accept", "")


def _index(service: Service) -> Response:
    root = service.root_path
    answer = IndexAnswer(
        service="kvasir",
        version=__version__,
        api=f"{root}/v1",
        docs=f"{root}/docs" if service.has_docs else None,
        metrics=f"{root}{METRICS_PATH}",
        health=f"{root}/health",
        api_key_required=service.access.keys.needed,
    )
    return Response(encode(answer) + b"\n", headers=BY_ACCEPT, media_type="application/json")
