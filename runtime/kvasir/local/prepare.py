"""Makes the services of a manifest ready to run here: model checked, addresses taken, processes made. For `up`."""

from contextlib import ExitStack
from typing import Final

from kvasir.config.options import ConfigError
from kvasir.local.gpus import take_gpus
from kvasir.local.manifest import Manifest
from kvasir.local.model import check_model
from kvasir.local.place import open_place
from kvasir.local.pods import service_processes, without_effect
from kvasir.local.run import LocalService
from kvasir_operator.spec import InferenceService

LAST_PORT: Final = 65535


def prepare_services(stack: ExitStack, manifest: Manifest, host: str, port: int) -> list[LocalService]:
    """The services, on consecutive ports from this one on; 0 takes any free ones.

    What they hold is given back when the stack closes. Raises ConfigError.
    """
    _check_ports(port, len(manifest.services))
    return [
        _prepare(stack, manifest, service, host, port + number if port else 0)
        for number, service in enumerate(manifest.services)
    ]


def _check_ports(first: int, services: int) -> None:
    """Beyond the last port, the socket would quietly take another one."""
    last = first + services - 1
    if last > LAST_PORT:
        raise ConfigError(
            f"--port {first}: {services} services take the ports up to {last}, and the last one there is "
            f"{LAST_PORT}: choose a smaller --port"
        )


def _prepare(stack: ExitStack, manifest: Manifest, service: InferenceService, host: str, port: int) -> LocalService:
    if ignored := without_effect(service):
        print(f"InferenceService {service.name}: without a cluster these have no effect: {', '.join(ignored)}")
    # A hub's token from a Secret is for the processes alone; they then find a wrong model themselves.
    chats = service.model.token_secret is not None or check_model(service.model.source)
    place = open_place(
        service.name,
        host=host,
        port=port,
        frontends=service.frontend.replicas,
        engines=service.engine.data_parallel_size,
        gpus=_gpus(service),
    )
    stack.callback(place.close)
    try:
        processes = service_processes(service, manifest.secrets, place)
    except ConfigError as error:
        raise ConfigError(f"InferenceService {service.name}: {error}") from error
    return LocalService(
        place=place,
        processes=processes,
        served_name=service.model.served_names[0],
        chats=chats,
        needs_key=service.frontend.api_keys is not None,
    )


def _gpus(service: InferenceService) -> list[str]:
    resource, count = service.engine.resource_name, service.engine.data_parallel_size
    if not resource:
        return []
    if not resource.startswith("nvidia.com/"):
        raise ConfigError(
            f"InferenceService {service.name}: spec.engine.resourceName {resource}: without a cluster only "
            "nvidia.com/gpu can be found"
        )
    try:
        return take_gpus(count, 'set spec.engine.resourceName to "" for CPU, or spec.engine.dataParallelSize lower')
    except ConfigError as error:
        raise ConfigError(f"InferenceService {service.name}: {error}") from error
