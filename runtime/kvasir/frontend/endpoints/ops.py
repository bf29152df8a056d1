"""What probes, operators and Prometheus ask: /health, /health/live, /health/ready, /ping, /metrics, /version."""

from fastapi import Request, Response

from kvasir.frontend.endpoints.answers import (
    EngineHealth,
    HealthAnswer,
    LoadProgress,
    ProbeAnswer,
    Responses,
    VersionAnswer,
)
from kvasir.frontend.routing import json_response, new_router
from kvasir.frontend.service import ServiceDep
from kvasir.frontend.telemetry.metrics import CONTENT_TYPE
from kvasir.link.frontend_end.remote_engine import RemoteEngine
from kvasir.version import __version__
from kvasir_contract.endpoints import LIVE_PATH, METRICS_PATH, READY_PATH

router = new_router()


class MetricsResponse(Response):
    media_type = CONTENT_TYPE


@router.get(LIVE_PATH)
async def live() -> ProbeAnswer:
    """The process answers."""
    return ProbeAnswer(status="live")


@router.get(
    READY_PATH, response_model=ProbeAnswer, responses={503: {"model": ProbeAnswer, "description": "Not now"}}
)
async def ready(service: ServiceDep) -> Response:
    """New requests may be sent here: an engine has been ready once and the server is not stopping."""
    reason = service.unready_reason()
    answer = ProbeAnswer(status="ready") if reason is None else ProbeAnswer("unready", reason)
    return json_response(answer, 200 if reason is None else 503)


UNHEALTHY: Responses = {503: {"model": HealthAnswer, "description": "Not now"}}


@router.get("/health", response_model=HealthAnswer, responses=UNHEALTHY)
async def health(request: Request, service: ServiceDep) -> Response:
    """A request would be answered now. The engines are listed unless an API key is required and missing."""
    engines = list(service.llm.engines.values())
    usable = any(engine.usable for engine in engines)
    answer = HealthAnswer(status="ok" if usable else "no usable engine")
    if service.access.refusal(request.scope["headers"]) is None:
        answer.engines = [_engine(engine) for engine in engines]
    return json_response(answer, 200 if usable else 503)


@router.get("/ping", response_model=HealthAnswer, responses=UNHEALTHY)
@router.post("/ping", response_model=HealthAnswer, responses=UNHEALTHY)
async def ping(request: Request, service: ServiceDep) -> Response:
    """Answer as /health, under the name that SageMaker asks for."""
    return await health(request, service)


@router.get(METRICS_PATH, response_class=MetricsResponse)
async def metrics(service: ServiceDep) -> Response:
    """Metrics for Prometheus, listed in docs/metrics.md."""
    # Set as a header: Starlette would add a second charset to the media type.
    return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE})


@router.get("/version")
async def version() -> VersionAnswer:
    """The version of Kvasir."""
    return VersionAnswer(version=__version__)


def _engine(engine: RemoteEngine) -> EngineHealth:
    # Clients may not read the name of the engine's node.
    progress = engine.progress
    return EngineHealth(
        rank=engine.rank,
        incarnation=engine.incarnation,
        phase=engine.state,
        progress=None if progress is None else LoadProgress(done=progress.done, total=progress.total),
        usable=engine.usable,
        step_age=engine.step_age,
    )
