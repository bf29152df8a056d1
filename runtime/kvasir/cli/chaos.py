"""`kvasir chaos [URL]`: disturb the engines of a service under load, and compare every answer."""

import argparse
import asyncio
import contextlib
import secrets
import socket
import sys
from urllib.parse import urlsplit

from kvasir.benchmark.figures import check_json, write_json
from kvasir.chaos.disturbances import ChaosTarget, Havoc, Load, plan
from kvasir.chaos.kubernetes_target import KubernetesTarget
from kvasir.chaos.local_target import LocalTarget
from kvasir.chaos.questions import questions
from kvasir.cli.api_client import URL_HELP, ApiServer, add_api_key, base_url, check_text, default_url
from kvasir.config.options import ConfigError, OptionParser, add_options, from_args


def parser() -> OptionParser:
    result = OptionParser(
        prog="kvasir chaos",
        usage="kvasir chaos [URL] [option …]",
        description="Disturb the engines of a running service at random times while clients use it, and compare "
        "each answer with that of the undisturbed service. The service is a `kvasir up` or `kvasir serve` of this "
        "user on this machine, or an InferenceService of a cluster. Exit codes: 0 nothing was lost or wrong, "
        "1 something was.",
    )
    result.add_argument("url", metavar="URL", nargs="?", default=default_url(), help=URL_HELP)
    result.add_argument(
        "--kubernetes",
        metavar="NAMESPACE/NAME",
        help="disturb the engine pods of this InferenceService, through kubectl; URL then leads to its frontends",
    )
    add_options(result, Load, "load")
    add_options(result, Havoc, "disturbances")
    add_api_key(result)
    result.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    return result


def run(args: argparse.Namespace) -> int:
    from kvasir.chaos import chaos_run
    from kvasir.chaos.report import INTERRUPTED, lines, passed

    check_text(args)
    if args.json is not None:
        check_json(args.json)
    load, havoc = from_args(Load, args, environ={}), from_args(Havoc, args, environ={})
    seed = secrets.randbelow(2**32) if load.seed is None else load.seed
    url = base_url(args.url)
    target = _target(url, havoc, args.kubernetes)
    disturbances = plan(havoc, seed, target.kinds)
    with ApiServer(url, args.api_key) as server:
        model = load.model or server.first_model()
    _note(f"seed {seed}")
    asked = questions(load.questions, model, load.max_tokens, seed)
    report = asyncio.run(
        chaos_run.run(url, args.api_key, load, havoc, asked, target, plan=disturbances, seed=seed, note=_note)
    )
    figures = {"url": url, "model": model, **report.figures()}
    print("\n".join(lines(figures)))
    if args.json is not None:
        write_json(args.json, figures)
    if report.stopped_by == INTERRUPTED:
        raise KeyboardInterrupt
    return 0 if passed(figures) else 1


def _target(url: str, havoc: Havoc, service: str | None) -> ChaosTarget:
    if service is not None:
        namespace, _, name = service.rpartition("/")
        return KubernetesTarget(namespace or "default", name)
    parts = urlsplit(url)
    if not _is_here(parts.hostname or ""):
        raise ConfigError(
            f"{url} is not on this machine, and only engines of this machine can be disturbed: give "
            "--kubernetes NAMESPACE/NAME, or run the command there"
        )
    return LocalTarget(parts.port or (443 if parts.scheme == "https" else 80), havoc.freeze_time)


def _is_here(host: str) -> bool:
    # Only an address of this machine can be bound.
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False


def _note(text: str) -> None:
    print(f"kvasir chaos: {text}", file=sys.stderr, flush=True)
