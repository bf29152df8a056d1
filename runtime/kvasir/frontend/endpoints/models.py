"""GET /v1/models and /v1/models/{name}: the names of the one model that is served."""

from kvasir.frontend.endpoints.answers import Model, ModelList, errors
from kvasir.frontend.routing import new_router
from kvasir.frontend.service import Service, ServiceDep

router = new_router()


@router.get("/v1/models")
async def list_models(service: ServiceDep) -> ModelList:
    """The names of the model that is served."""
    return ModelList(object="list", data=[_model(service, name) for name in service.model_names])


@router.get("/v1/models/{name:path}", responses=errors(404))
async def retrieve_model(name: str, service: ServiceDep) -> Model:
    """One of the names of the model."""
    return _model(service, service.model_name(name))


def _model(service: Service, name: str) -> Model:
    pooling = service.llm.input.pooling
    return Model(
        id=name,
        object="model",
        created=service.started,
        owned_by="kvasir",
        root=service.model_source,
        parent=None,
        max_model_len=service.llm.max_model_len,
        task="generate" if pooling is None else pooling.info.task,
    )
