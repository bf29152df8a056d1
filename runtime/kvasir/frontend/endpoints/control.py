"""What operators ask and do: GET /load, POST /reset_prefix_cache, POST /start_profile, POST /stop_profile."""

from typing import Final

from fastapi import Request

from kvasir.client.calls import CALL_TIMEOUT, CallOutcome
from kvasir.frontend.endpoints.answers import (
    EngineLoadEntry,
    EngineProfile,
    EngineReset,
    LoadAnswer,
    ProfileAnswer,
    ResetAnswer,
    errors,
)
from kvasir.frontend.endpoints.description.route import NEEDS_KEY
from kvasir.frontend.errors import ApiError, bad_field
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import AdminDep, Service, ServiceDep
from kvasir.link.frontend_end.remote_engine import RemoteEngine

router = new_router()

PROFILE_TIMEOUT: Final = 120.0
"""Seconds."""


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
    outcomes = await _call(request, service, "reset_prefix_cache")
    _check(outcomes, "the prefix cache was not reset", "try again", "reset_failed")
    return ResetAnswer(
        engines=[EngineReset(rank=outcome.rank, incarnation=outcome.incarnation) for outcome in outcomes]
    )


@router.post("/start_profile", responses=errors(400, 401, 403, 409, 503), openapi_extra={"security": NEEDS_KEY})
async def start_profile(_: AdminDep, request: Request, service: ServiceDep) -> ProfileAnswer:
    """Begin to record what the workers of every engine compute. Needs an administrator's key, and engines with
    `--profiler-config`."""
    outcomes = await _call(request, service, "start_profile")
    _check(outcomes, "no profile was started", "see docs/profiling.md", "profile_failed")
    return _profiles(outcomes, stopped=False)


@router.post("/stop_profile", responses=errors(400, 401, 403, 409, 503), openapi_extra={"security": NEEDS_KEY})
async def stop_profile(_: AdminDep, request: Request, service: ServiceDep) -> ProfileAnswer:
    """End the profiles and write them to files on the engines' machines. Needs an administrator's key."""
    outcomes = await _call(request, service, "stop_profile", PROFILE_TIMEOUT)
    _check(outcomes, "no profile was written", "see docs/profiling.md", "profile_failed")
    return _profiles(outcomes, stopped=True)


async def _call(
    request: Request, service: Service, method: str, seconds: float = CALL_TIMEOUT
) -> list[CallOutcome]:
    for name in request.query_params:
        raise bad_field(name, f"unknown query parameter {name[:100]!r}: this endpoint takes none")
    return await service.llm.call(method, seconds)


def _check(outcomes: list[CallOutcome], problem: str, next_step: str, code: str) -> None:
    if failed := [outcome for outcome in outcomes if outcome.error]:
        told = "; ".join(f"{outcome.incarnation}: {outcome.error}" for outcome in failed)
        raise ApiError(
            409, f"{problem} in {len(failed)} of {len(outcomes)} engines ({told}): {next_step}", code=code
        )


def _profiles(outcomes: list[CallOutcome], stopped: bool) -> ProfileAnswer:
    return ProfileAnswer(
        engines=[
            EngineProfile(rank=each.rank, incarnation=each.incarnation, files=each.values if stopped else [])
            for each in outcomes
        ]
    )


def _load_of(engine: RemoteEngine) -> EngineLoadEntry:
    stats, capacity = engine.stats, engine.capacity
    return EngineLoadEntry(
        rank=engine.rank,
        incarnation=engine.incarnation,
        usable=engine.usable,
        running=None if stats is None else stats.running,
        waiting=None if stats is None else stats.waiting,
        kv_cache_usage=(
            None if stats is None or capacity is None else stats.kv_blocks_used / max(1, capacity.num_blocks)
        ),
    )
