"""GET /v1/models and /v1/models/{name}: the names of the model that is served, and its LoRA adapters."""

from kvasir.frontend.endpoints.answers import Model, ModelList, errors
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep

router = new_router()


@router.get("/v1/models")
async def list_models(service: ServiceDep) -> ModelList:
    """The names of the model that is served, and its LoRA adapters."""
    names = [*service.model_names, *service.adapters]
    return ModelList(object="list", data=[_model(service, name) for name in names])


@router.get("/v1/models/{name:path}", responses=errors(404))
async def retrieve_model(name: str, service: ServiceDep) -> Model:
    """One of the names of the model, or a LoRA adapter."""
    return _model(service, service.model_name(name))


def _model(service: Service, name: str) -> Model:
    pooling, served = service.llm.input.pooling, service.adapters.get(name)
    return Model(
        id=name,
        object="model",
        created=service.started if served is None else served.since,
        owned_by="kvasir",
        root=service.model_source if served is None else served.module.source,
        parent=None if served is None else served.parent or service.model_names[0],
        max_model_len=service.llm.max_model_len,
        task="generate" if pooling is None else pooling.info.task,
    )
