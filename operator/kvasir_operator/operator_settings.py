"""The operator's settings: command-line options, each with an equivalent environment variable."""

import argparse
import importlib.metadata
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir_contract.endpoints import ANY_HOST
from kvasir_contract.extras import DISTRIBUTION
from kvasir_contract.units import parse_duration
from kvasir_operator.observe.objects import DRAIN_TAINTS
from kvasir_operator.profiles import Profiles
from kvasir_operator.resources.release import OWN_PREFIXES, Release

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_METADATA_KEY: Final = re.compile(
    r"(?!/)([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", re.ASCII
)

OPERATOR_NAMESPACE: Final = "kvasir-system"  # of the manifests


@dataclass(frozen=True)
class OperatorSettings:
    release: Release
    operator_class: str  # of the services that it handles
    max_upgrades: int  # automatic ones at a time; 0: none
    drain_taints: tuple[str, ...]  # keys
    namespaces: tuple[str, ...]  # empty: all
    lease_namespace: str
    lease_duration: float  # seconds
    identity: str  # in the Lease
    host: str
    port: int  # of probes and metrics
    resync: float  # seconds between two reconciles of a service without an event
    workers: int  # services at a time
    log_level: str
    log_format: str


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Return the settings. Exits with code 2 and a one-line message if a value is invalid."""
    parser = _parser(environment)
    options = parser.parse_args(arguments)
    for image in ("frontend_image", "engine_image"):
        if not getattr(options, image):
            flag = "--" + image.replace("_", "-")
            parser.error(f"{flag} (or {_variable(flag)}) is required, for services without spec.image")
    return _settings(options)


def parse_preview(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> tuple[Path, bool, OperatorSettings]:
    """Return the file, whether to ask no cluster, and the settings, whose images may be ""."""
    parser = _parser({"POD_NAMESPACE": OPERATOR_NAMESPACE, **environment})
    parser.prog = "kvasir-operator plan"
    parser.description = "Print the changes that the operator would make for a manifest, without making them."
    parser.add_argument("file", type=Path, metavar="FILE", help="the manifest")
    parser.add_argument("--offline", action="store_true", help="plan a new service, without a cluster")
    options = parser.parse_args(arguments)
    return options.file, options.offline, _settings(options)


def release_of(environment: Mapping[str, str]) -> Release:
    """Return the release of an operator with these variables, without its profiles, which are files of its pod."""
    options = _parser({name: value for name, value in environment.items() if name != _variable("--profiles")})
    return _settings(options.parse_args([])).release


def _settings(options: argparse.Namespace) -> OperatorSettings:
    namespaces = _listed(options.namespaces)
    return OperatorSettings(
        release=Release(
            frontend_image=options.frontend_image,
            engine_image=options.engine_image,
            version=_version(),
            operator_namespace=options.operator_namespace,
            reads_nodes=not namespaces,
            monitoring_namespaces=_listed(options.monitoring_namespaces),
            image_pull_secrets=_listed(options.image_pull_secrets),
            inherited_labels=options.inherit_labels,
            inherited_annotations=options.inherit_annotations,
            profiles=Profiles.of_folder(Path(options.profiles)) if options.profiles else Profiles(),
        ),
        operator_class=options.operator_class,
        max_upgrades=options.max_upgrades if options.upgrade == "automatic" else 0,
        drain_taints=_listed(options.drain_taints),
        namespaces=namespaces,
        lease_namespace=options.lease_namespace,
        lease_duration=options.lease_duration,
        identity=options.identity,
        host=options.host,
        port=options.port,
        resync=options.resync,
        workers=options.workers,
        log_level=options.log_level,
        log_format=options.log_format,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvasir-operator",
        description="Run InferenceServices as pods. Each option has an environment variable, such as KVASIR_PORT.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def option(flag: str, default: str, text: str, **more: object) -> None:
        value = environment.get(_variable(flag), default)
        parser.add_argument(flag, default=value, help=text, **more)  # type: ignore[arg-type]

    _add_service_options(option, environment)
    _add_process_options(option, environment)
    return parser


def _add_service_options(option: Callable[..., None], environment: Mapping[str, str]) -> None:
    option("--frontend-image", "", "image of frontends, for services that do not set spec.image")
    option("--engine-image", "", "image of engines, for services that do not set spec.image")
    option(
        "--image-pull-secrets",
        "",
        "comma-separated names of Secrets in each service's namespace with which its pods pull their images",
    )
    option("--namespaces", "", "comma-separated namespaces to watch; empty for all")
    option("--operator-class", "", "handle only services with this spec.operatorClass", type=_class_name)
    option(
        "--upgrade",
        "manual",
        "roll out a new release of the operator automatically, or only when a service requests it",
        choices=["manual", "automatic"],
    )
    option(
        "--drain-taints",
        ",".join(DRAIN_TAINTS),
        "comma-separated keys of taints with which autoscalers announce that they remove a node, as a cordon does",
    )
    option("--monitoring-namespaces", "", "comma-separated namespaces that may read metrics of all services' pods")
    for what in ("labels", "annotations"):
        option(
            f"--inherit-{what}",
            "",
            f"comma-separated {what} of a service that all its objects get: keys, or prefixes that end with /",
            type=_metadata_keys,
        )
    option("--profiles", "", "directory with a file of defaults for each spec.profile, such as h100.yaml")
    option("--max-upgrades", "1", "how many services may upgrade automatically at the same time", type=_count)
    option(
        "--operator-namespace",
        _own_namespace(environment),
        "namespace of the operator, from which NetworkPolicies allow access to the pods' ops ports",
    )


def _add_process_options(option: Callable[..., None], environment: Mapping[str, str]) -> None:
    option("--lease-namespace", _own_namespace(environment), "namespace of the Lease for leader election")
    option(
        "--lease-duration",
        "15s",
        "time without a renewal after which another replica takes over",
        type=_at_least_a_second,
    )
    option("--identity", _identity(environment), "name of this replica in the Lease")
    option("--host", ANY_HOST, "address of probes and metrics; * for all addresses")
    option("--port", "8080", "port of probes and metrics; 0 for any free port", type=_port)
    option(
        "--resync", "10m", "interval at which every service is reconciled without an event", type=_at_least_a_second
    )
    option("--workers", "8", "how many services are reconciled at the same time", type=_count)
    option("--log-level", "info", "least severe level to log", choices=["debug", "info", "warning", "error"])
    option("--log-format", "text", "format of log lines", choices=["text", "json"])


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _variable(flag: str) -> str:
    return "KVASIR_" + flag.removeprefix("--").replace("-", "_").upper()


def _own_namespace(environment: Mapping[str, str]) -> str:
    try:
        return environment.get("POD_NAMESPACE") or _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"


def _identity(environment: Mapping[str, str]) -> str:
    # unique among replicas: the pod's name, or host and PID outside a cluster
    return environment.get("POD_NAME") or f"{socket.gethostname()}_{os.getpid()}"


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _class_name(text: str) -> str:
    if not re.fullmatch(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)?", text, re.ASCII) or len(text) > 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid class: use lower-case letters, digits and '-'")
    return text


def _metadata_keys(text: str) -> tuple[str, ...]:
    keys = _listed(text)
    for key in keys:
        if not _METADATA_KEY.fullmatch(key):
            raise argparse.ArgumentTypeError(
                f"{key!r} is not a valid key: use one such as team, example.com/team or example.com/"
            )
        if key.startswith(OWN_PREFIXES):
            raise argparse.ArgumentTypeError(f"{key!r} cannot be inherited, because Kvasir sets it")
    return keys


def _at_least_a_second(text: str) -> float:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if duration < 1:
        raise argparse.ArgumentTypeError(f"{text} is too short: use at least 1s")
    return duration


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid port: use a number from 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid count: use a number of at least 1")
    return int(text)
