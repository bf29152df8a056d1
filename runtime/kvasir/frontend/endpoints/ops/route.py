"""What probes, operators and Prometheus ask: /health, /health/live, /health/ready, /ping, /metrics, /version."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from kvasir import __version__
from kvasir.frontend.routing import Routes
from kvasir.frontend.service import service_of
from kvasir.frontend.telemetry.metrics import CONTENT_TYPE
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir_contract.endpoints import LIVE_PATH, METRICS_PATH, READY_PATH

routes = Routes()


@routes.get(LIVE_PATH)
async def live(request: Request) -> Response:
    """The process answers."""
    return _json(200, {"status": "live"})


@routes.get(READY_PATH)
async def ready(request: Request) -> Response:
    """New requests may be sent here: an engine has been ready once and the server is not stopping."""
    reason = service_of(request).unready_reason()
    if reason is not None:
        return _json(503, {"status": "unready", "reason": reason})
    return _json(200, {"status": "ready"})


@routes.get("/health")
async def health(request: Request) -> Response:
    """A request would be answered now; with the engines that would do it."""
    engines = list(service_of(request).llm.engines.values())
    usable = any(engine.usable for engine in engines)
    body = {"status": "ok" if usable else "no usable engine", "engines": [_engine(e) for e in engines]}
    return _json(200 if usable else 503, body)


@routes.get("/ping")
@routes.post("/ping")
async def ping(request: Request) -> Response:
    """The same as /health, under the name that SageMaker asks for."""
    return await health(request)


@routes.get(METRICS_PATH)
async def metrics(request: Request) -> Response:
    """For Prometheus; docs/metrics.md lists them."""
    return Response(service_of(request).metrics.render(), headers={"content-type": CONTENT_TYPE})


@routes.get("/version")
async def version(request: Request) -> Response:
    """Of kvasir."""
    return _json(200, {"version": __version__})


def _engine(engine: RemoteEngine) -> dict[str, Any]:
    progress = engine.progress
    return {
        "rank": engine.rank,
        "incarnation": engine.incarnation,
        "node": engine.node,
        "phase": engine.state,
        "progress": None if progress is None else {"done": progress.done, "total": progress.total},
        "usable": engine.usable,
        "step_age": engine.step_age,
    }


def _json(status: int, value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")
