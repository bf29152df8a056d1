"""The operator's settings: command-line options, each with an environment variable for its manifest.

They are read once into one frozen object. A value that cannot be used ends the process with a one-line message.
"""

import argparse
import importlib.metadata
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvasir_contract.endpoints import ANY_HOST
from kvasir_contract.units import parse_duration
from kvasir_operator.resources.release import Release

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class OperatorSettings:
    release: Release
    operator_class: str
    """Services of this class are handled, and no others."""
    max_upgrades: int
    """Services that take a new release by themselves at a time; 0: none does."""
    namespaces: tuple[str, ...]
    """Those that are watched; empty for all."""
    lease_namespace: str
    lease_duration: float
    """Seconds."""
    identity: str
    """Of this replica, in the Lease."""
    host: str
    port: int
    """Probes and metrics."""
    resync: float
    """Seconds between two reconciles of every service, whether or not something happened."""
    workers: int
    """Services that are reconciled at the same time."""
    log_level: str
    log_format: str


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Exits with code 2 and one line for what cannot be used."""
    parser = _parser(environment)
    return _settings(parser, parser.parse_args(arguments), environment)


def parse_preview(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ
) -> tuple[Path, OperatorSettings]:
    """The arguments of `kvasir-operator plan`: a file, and the operator's options."""
    parser = _parser(environment)
    parser.prog = "kvasir-operator plan"
    parser.description = (
        "Prints what the operator would do for the InferenceServices of a manifest; changes nothing."
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the manifest")
    options = parser.parse_args(arguments)
    return options.file, _settings(parser, options, environment)


def _settings(
    parser: argparse.ArgumentParser, options: argparse.Namespace, environment: Mapping[str, str]
) -> OperatorSettings:
    for image in ("frontend_image", "engine_image"):
        if not getattr(options, image):
            flag = "--" + image.replace("_", "-")
            parser.error(f"{flag} (or {_variable(flag)}) is missing: the image of services that name none")
    namespaces = tuple(name.strip() for name in options.namespaces.split(",") if name.strip())
    return OperatorSettings(
        release=Release(
            frontend_image=options.frontend_image,
            engine_image=options.engine_image,
            version=_version(),
            operator_namespace=options.operator_namespace,
            reads_nodes=not namespaces,
        ),
        operator_class=options.operator_class,
        max_upgrades=options.max_upgrades if options.upgrade == "automatic" else 0,
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
        description="Makes InferenceServices into pods. Options have environment variables: --port is KVASIR_PORT.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def option(flag: str, default: str, text: str, **more: object) -> None:
        value = environment.get(_variable(flag), default)
        parser.add_argument(flag, default=value, help=text, **more)  # type: ignore[arg-type]

    option("--frontend-image", "", "image of frontends, for services that name none")
    option("--engine-image", "", "image of engines, for services that name none")
    option("--namespaces", "", "namespaces to watch, separated by commas; empty for all")
    option(
        "--operator-class",
        "",
        "handle the services whose spec.operatorClass is this, and no others",
        type=_class_name,
    )
    option(
        "--upgrade",
        "manual",
        "whether services take a new release of the operator by themselves, or when they are asked to",
        choices=["manual", "automatic"],
    )
    option("--max-upgrades", "1", "services that take a new release by themselves at a time", type=_count)
    option(
        "--operator-namespace",
        _own_namespace(environment),
        "where the operator runs: NetworkPolicies let it reach the pods' ops ports from there",
    )
    option("--lease-namespace", _own_namespace(environment), "where the Lease of the leading replica is")
    option("--lease-duration", "15s", "how long others wait for a leader that fell silent", type=_at_least_a_second)
    option("--identity", _identity(environment), "of this replica, in the Lease")
    option("--host", ANY_HOST, "address of probes and metrics; * is every address")
    option("--port", "8080", "port of probes and metrics; 0 takes any free one", type=_port)
    option(
        "--resync", "10m", "every service is looked at this often, even if nothing happens", type=_at_least_a_second
    )
    option("--workers", "8", "services that are reconciled at the same time", type=_count)
    option("--log-level", "info", "what is logged", choices=["debug", "info", "warning", "error"])
    option("--log-format", "text", "how", choices=["text", "json"])
    return parser


def _variable(flag: str) -> str:
    return "KVASIR_" + flag.removeprefix("--").replace("-", "_").upper()


def _own_namespace(environment: Mapping[str, str]) -> str:
    try:
        return environment.get("POD_NAMESPACE") or _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return "default"


def _identity(environment: Mapping[str, str]) -> str:
    """A pod's name is its host's; outside a cluster several processes may share a host."""
    return environment.get("POD_NAME") or f"{socket.gethostname()}_{os.getpid()}"


def _version() -> str:
    try:
        return importlib.metadata.version("kvasir")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _class_name(text: str) -> str:
    if not re.fullmatch(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)?", text, re.ASCII) or len(text) > 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a class: use lower-case letters, digits and '-'")
    return text


def _at_least_a_second(text: str) -> float:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if duration < 1:
        raise argparse.ArgumentTypeError(f"{text} is too short: at least 1s")
    return duration


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give a number from 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
