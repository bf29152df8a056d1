"""ProcessSpecs of frontends and engines: `kvasir frontend` and `kvasir engine` under this very interpreter.

pods.py brings arguments, environment and probes from pod templates, cli/serve.py from its options.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvasir.local.place import Place
from kvasir.local.process import Probe, ProcessSpec
from kvasir_contract.endpoints import (
    FRONTEND_STARTUP,
    KILL_MARGIN_SECONDS,
    LIVENESS,
    READINESS,
    STATUS_PATH,
    ProbeTiming,
)
from kvasir_contract.environment import PREFIX

COMMAND: Final = (sys.executable, "-P", "-m", "kvasir.cli.main")
"""`kvasir`; -P: a torch.py in the working directory is not imported."""


@dataclass(frozen=True)
class Probes:
    """What a container is asked."""

    readiness: ProbeTiming
    liveness: ProbeTiming
    startup: ProbeTiming | None


ENGINE_PROBES: Final = Probes(READINESS, LIVENESS, startup=None)
FRONTEND_PROBES: Final = Probes(READINESS, LIVENESS, startup=FRONTEND_STARTUP)


def probe_at(url: str, timing: ProbeTiming) -> Probe:
    return Probe(url + timing.path, timing.period, timing.timeout, timing.failures)


def grace_of(drain_timeout: float) -> float:
    """Seconds from SIGTERM to SIGKILL, as pods have it."""
    return drain_timeout + KILL_MARGIN_SECONDS


def inherited_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's environment without options of Kvasir: a child gets its own, as a pod does."""
    return {name: value for name, value in environ.items() if not name.startswith(PREFIX)}


def engine_spec(
    place: Place,
    rank: int,
    args: Sequence[str],
    env: Mapping[str, str],
    grace: float,
    probes: Probes = ENGINE_PROBES,
) -> ProcessSpec:
    url = place.ops_url(rank)
    return ProcessSpec(
        service=place.service,
        name=f"engine-{rank}",
        argv=(*COMMAND, *args),
        env={**env, **place.engine_env(rank)},
        readiness=probe_at(url, probes.readiness),
        liveness=probe_at(url, probes.liveness),
        startup=None,
        status_url=url + STATUS_PATH,
        grace=grace,
    )


def frontend_spec(
    place: Place,
    number: int,
    args: Sequence[str],
    env: Mapping[str, str],
    grace: float,
    probes: Probes = FRONTEND_PROBES,
) -> ProcessSpec:
    """Frontends share one socket: with several, an answer does not tell which of them gave it."""
    alone = len(place.links) == 1
    return ProcessSpec(
        service=place.service,
        name=f"frontend-{number}",
        argv=(*COMMAND, *args),
        env={**env, **place.frontend_env(number)},
        readiness=probe_at(place.url, probes.readiness),
        liveness=probe_at(place.url, probes.liveness) if alone else None,
        startup=probe_at(place.url, probes.startup) if alone and probes.startup else None,
        status_url=None,
        grace=grace,
        pass_fds=(place.listener.fileno(),),
    )
