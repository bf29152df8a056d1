"""What operators ask and do: GET /load, POST /reset_prefix_cache."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvasir.frontend.endpoints.answers import EngineLoad, EngineReset, LoadAnswer, ResetAnswer
from kvasir.frontend.errors import ApiError, bad_field
from kvasir.frontend.routing import Routes
from kvasir.frontend.service import service_of
from kvasir.link.frontend_end.remote_engine import RemoteEngine

routes = Routes()


@routes.get("/load")
async def load(request: Request) -> Response:
    """Requests that this server works on (`server_load`, as in vLLM), and each engine's load."""
    service = service_of(request)
    engines = [_load_of(engine) for engine in service.llm.engines.values()]
    return _json(LoadAnswer(service.llm.live_requests, service.max_prompts, engines))


@routes.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> Response:
    """Clear the prefix cache of every engine."""
    for name in request.query_params:
        raise bad_field(name, f"unknown query parameter {name[:100]!r}: this endpoint takes none")
    outcomes = await service_of(request).llm.call("reset_prefix_cache")
    if failed := [outcome for outcome in outcomes if outcome.error]:
        told = "; ".join(f"{outcome.incarnation}: {outcome.error}" for outcome in failed)
        raise ApiError(
            409,
            f"the prefix cache was not reset in {len(failed)} of {len(outcomes)} engines ({told}): try again",
            code="reset_failed",
        )
    return _json(ResetAnswer([EngineReset(outcome.rank, outcome.incarnation) for outcome in outcomes]))


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


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
