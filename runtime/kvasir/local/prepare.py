"""Prepare the services of a manifest: check the model, take addresses, make processes."""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, NoReturn

from kvasir.config.frontend_settings import FrontendConfig
from kvasir.config.options import Config, ConfigError, OptionParser
from kvasir.config.sections import add_sections, from_sections
from kvasir.config.settings import EngineConfig, ParallelConfig
from kvasir.hub.hub_errors import HubError
from kvasir.hub.source import DEMO
from kvasir.local.check_model import CHAT, check_model
from kvasir.local.gpus import take_gpus, visible_gpus
from kvasir.local.manifests.manifest import Manifest
from kvasir.local.place import open_place
from kvasir.local.pods import engine_options, service_processes, without_effect
from kvasir.local.run import LocalService
from kvasir_operator.spec import InferenceService

LAST_PORT: Final = 65535


def prepare_services(stack: ExitStack, manifest: Manifest, host: str, port: int) -> list[LocalService]:
    """Return the services, on consecutive ports from this one on; 0 takes any free ones.

    The stack closes their resources. Raises ConfigError.
    """
    _check_ports(port, len(manifest.services))
    gpus = gpus_of(manifest.services, visible_gpus())
    return [
        _prepare(stack, manifest, service, host, port + number if port else 0, gpus[service.name])
        for number, service in enumerate(manifest.services)
    ]


def gpus_of(services: Sequence[InferenceService], gpus: Sequence[str]) -> dict[str, list[str]]:
    """Give each service GPUs of its own, one for each worker; none to services on CPU. Raises ConfigError."""
    needs = {service.name: _gpus_needed(service) for service in services}
    remedy = 'set spec.engine.resourceName to "" for CPU, or spec.engine.dataParallelSize lower'
    unit = "engine" if all(service.engine.workers == 1 for service in services) else "worker"
    try:
        taken = iter(take_gpus(sum(needs.values()), remedy, list(gpus), unit))
    except ConfigError as error:
        each = ", ".join(f"{name} {count}" for name, count in needs.items() if count)
        raise ConfigError(f"InferenceServices on GPUs ({each}): {error}") from error
    return {name: list(itertools.islice(taken, count)) for name, count in needs.items()}


def _check_ports(first: int, services: int) -> None:
    # Beyond the last port, the socket would take another one without an error.
    last = first + services - 1
    if last > LAST_PORT:
        raise ConfigError(
            f"--port {first}: {services} services take the ports up to {last}, and the last one there is "
            f"{LAST_PORT}: choose a smaller --port"
        )


def _prepare(
    stack: ExitStack, manifest: Manifest, service: InferenceService, host: str, port: int, gpus: Sequence[str]
) -> LocalService:
    if ignored := without_effect(service):
        print(f"InferenceService {service.name}: without a cluster these have no effect: {', '.join(ignored)}")
    # A hub's token from a Secret is for the processes alone; they then find a wrong model themselves.
    use = CHAT if service.model.token_secret is not None else _check_model(service)
    place = open_place(
        service.name,
        host=host,
        port=port,
        frontends=service.frontend.replicas,
        engines=service.engine.data_parallel_size,
        gpus=gpus,
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
        use=use,
        needs_key=service.frontend.api_keys is not None,
        https=service.frontend.serves_https,
        is_demo=service.model.source == DEMO and not has_template(service),
    )


def _check_model(service: InferenceService) -> str:
    """Raises ConfigError, which names the field."""
    options: Sequence[str] = engine_options(service)
    field = "spec.engine.extraArgs"
    try:
        engine = _given(
            EngineConfig,
            field,
            options,
            ("model", "device", "cache", "scheduler", "executor", "lora"),
            model={"source": service.model.source},
            parallel=ParallelConfig(data_parallel_size=service.engine.data_parallel_size),
        )
        field, options = "spec.frontend.extraArgs", service.frontend.extra_args
        return check_model(engine, _given(FrontendConfig, field, options, ("chat",), model=None).chat)
    except HubError as error:
        raise ConfigError(f"InferenceService {service.name}: spec.model.source: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"InferenceService {service.name}: {error}") from error


class _FieldParser(OptionParser):
    field: str

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.field}: {message}")


def _given(
    config: type[Config], field: str, arguments: Sequence[str], sections: Sequence[str], **given: Any
) -> Config:
    """Return a configuration of these sections. `field`: the field of the manifest that has the options."""
    parser = _FieldParser()
    parser.field = field
    add_sections(parser, config, sections)
    return from_sections(config, parser.parse_known_args(arguments)[0], sections, environ={}, **given)


def has_template(service: InferenceService) -> bool:
    return any(arg.partition("=")[0].replace("_", "-") == "--chat-template" for arg in service.frontend.extra_args)


def _gpus_needed(service: InferenceService) -> int:
    resource = service.engine.resource_name
    if not resource:
        return 0
    if not resource.startswith("nvidia.com/"):
        raise ConfigError(
            f"InferenceService {service.name}: spec.engine.resourceName {resource}: without a cluster only "
            "nvidia.com/gpu can be found"
        )
    return service.engine.data_parallel_size * service.engine.workers
