"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as in vLLM."""

from typing import Annotated, Final

from fastapi import Request
from pydantic import Field
from starlette.responses import PlainTextResponse

from kvasir.config.lora_settings import MAX_NAME_CHARACTERS, LoraModule
from kvasir.frontend.endpoints.answers import errors
from kvasir.frontend.endpoints.description.route import NEEDS_KEY
from kvasir.frontend.errors import ApiError, bad_field
from kvasir.frontend.request_bodies.request_body import RequestBody
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep
from kvasir.hub.hub_errors import ModelNotFound

router = new_router()

MAX_ADAPTERS: Final = 4096

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]


class LoadAdapterRequest(RequestBody):
    lora_name: Name
    """The name that requests use as their model."""
    lora_path: Annotated[str, Field(min_length=1, max_length=4096)]
    """hf://org/name[@revision] or a directory of the server."""
    load_inplace: bool = False
    """Replace an adapter of this name. Running requests keep the one that they began with."""


class UnloadAdapterRequest(RequestBody):
    lora_name: Name
    lora_int_id: int | None = None
    """Without effect."""


@router.post(
    "/v1/load_lora_adapter",
    response_class=PlainTextResponse,
    responses=errors(400, 401, 403, 404, body=True),
    openapi_extra={"security": NEEDS_KEY},
)
async def load_lora_adapter(body: LoadAdapterRequest, request: Request, service: ServiceDep) -> PlainTextResponse:
    """Serve a LoRA adapter under a name. Needs an administrator's key, or --allow-runtime-lora-updating."""
    _check_allowed(request, service)
    name = body.lora_name
    if (name in service.adapters or service.adapters.is_loading(name)) and not body.load_inplace:
        raise bad_field(
            "lora_name",
            f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
            "'load_inplace' to True.",
        )
    engines = [engine for engine in service.llm.engines.values() if engine.usable]
    if engines and not any(engine.takes_adapters for engine in engines):
        raise bad_field(None, "no engine accepts LoRA adapters: start the engines with --enable-lora")
    if name not in service.adapters and len(service.adapters) >= MAX_ADAPTERS:
        raise bad_field("lora_name", f"{MAX_ADAPTERS} adapters are loaded, which is the limit: unload some")
    try:
        module = LoraModule(name, body.lora_path)
    except ValueError as unusable:
        raise bad_field("lora_name", f"lora_name: {unusable}") from None
    if (error := (await service.adapters.load([module])).get(name)) is not None:
        status = 404 if isinstance(error, ModelNotFound) else 400
        raise ApiError(status, f"the LoRA adapter {name} cannot be loaded: {error}", param="lora_path")
    return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")


@router.post(
    "/v1/unload_lora_adapter",
    response_class=PlainTextResponse,
    responses=errors(400, 401, 403, 404, body=True),
    openapi_extra={"security": NEEDS_KEY},
)
async def unload_lora_adapter(
    body: UnloadAdapterRequest, request: Request, service: ServiceDep
) -> PlainTextResponse:
    """Stop to serve a LoRA adapter; running requests end with it. Needs what /v1/load_lora_adapter needs."""
    _check_allowed(request, service)
    if not service.adapters.remove(body.lora_name):
        raise ApiError(404, f"The lora adapter '{body.lora_name}' cannot be found.", param="lora_name")
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _check_allowed(request: Request, service: Service) -> None:
    updates, access = service.adapter_updates, service.access
    if updates.refusal:
        message = f"adapters cannot be loaded or unloaded by requests: {updates.refusal}"
        raise ApiError(403, message, code="adapters_fixed")
    if access.has_administrators or not updates.for_all:
        error = access.control_refusal(request.scope["headers"])
        if error is not None and not access.has_administrators:
            error.message += "; or allow it to all clients with --allow-runtime-lora-updating"
        if error is not None:
            raise error
