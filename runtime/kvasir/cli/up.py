"""`kvasir up MANIFEST`: a manifest's InferenceServices, run on this machine from the operator's pod templates."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from kvasir.config.options import ConfigError, OptionParser, parse_int
from kvasir.local.gpus import take_gpus
from kvasir.local.manifest import Manifest, read_manifest
from kvasir.local.model import check_model
from kvasir.local.place import open_place
from kvasir.local.pods import service_processes, without_effect
from kvasir.local.run import LocalService, run_services
from kvasir_operator.spec import InferenceService

LAST_PORT: Final = 65535


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir up",
        usage="kvasir up MANIFEST [option …]",
        description="Run the InferenceServices of a manifest on this machine, as local processes, until Ctrl-C. "
        "They are checked by the same schema and run the same commands as in a cluster.",
    )
    result.add_argument(
        "manifest", metavar="MANIFEST", type=Path, help="YAML file with InferenceServices and the Secrets they name"
    )
    result.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all [default: %(default)s]"
    )
    result.add_argument(
        "--port",
        type=parse_int(0, LAST_PORT),
        default=8000,
        metavar="N",
        help="port of the first service, the next ones follow; 0 takes any free ones [default: %(default)s]",
    )
    return result


def run(args: argparse.Namespace) -> int:
    manifest = read_manifest(args.manifest)
    _check_ports(args.port, len(manifest.services))
    with ExitStack() as stack:
        services = [
            _prepare(stack, manifest, service, args.host, args.port + number if args.port else 0)
            for number, service in enumerate(manifest.services)
        ]
        run_services(services)
        return 0


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
