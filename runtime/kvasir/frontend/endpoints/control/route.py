"""What operators ask and do: GET /load, POST /reset_prefix_cache."""

from fastapi import Request

from kvasir.frontend.endpoints.answers import EngineLoad, EngineReset, LoadAnswer, ResetAnswer, errors
from kvasir.frontend.endpoints.description.openapi import NEEDS_KEY
from kvasir.frontend.errors import ApiError, bad_field
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import AdminDep, ServiceDep
from kvasir.link.frontend_end.remote_engine import RemoteEngine

router = new_router()


@router.get("/load")
async def load(service: ServiceDep) -> LoadAnswer:
    """Requests that this server works on (`server_load`, as in vLLM), and each engine's load."""
    engines = [_load_of(engine) for engine in service.llm.engines.values()]
    return LoadAnswer(
        server_load=service.llm.live_requests, max_live_requests=service.max_live_requests, engines=engines
    )


@router.post(
    "/reset_prefix_cache",
    responses=errors(400, 401, 403, 409, 503),
    openapi_extra={"security": NEEDS_KEY},
)
async def reset_prefix_cache(_: AdminDep, request: Request, service: ServiceDep) -> ResetAnswer:
    """Clear the prefix cache of every engine. Needs an administrator's key."""
    for name in request.query_params:
        raise bad_field(name, f"unknown query parameter {name[:100]!r}: this endpoint takes none")
    outcomes = await service.llm.call("reset_prefix_cache")
    if failed := [outcome for outcome in outcomes if outcome.error]:
        told = "; ".join(f"{outcome.incarnation}: {outcome.error}" for outcome in failed)
        raise ApiError(
            409,
            f"the prefix cache was not reset in {len(failed)} of {len(outcomes)} engines ({told}): try again",
            code="reset_failed",
        )
    return ResetAnswer(
        engines=[EngineReset(rank=outcome.rank, incarnation=outcome.incarnation) for outcome in outcomes]
    )


def _load_of(engine: RemoteEngine) -> EngineLoad:
    stats, capacity = engine.stats, engine.capacity
    return EngineLoad(
        rank=engine.rank,
        incarnation=engine.incarnation,
        usable=engine.usable,
        running=None if stats is None else stats.running,
        waiting=None if stats is None else stats.waiting,
        kv_cache_usage=(
            None if stats is None or capacity is None else stats.kv_blocks_used / max(1, capacity.num_blocks)
        ),
    )
