"""ProcessSpecs of frontends and engines: `kvasir frontend` and `kvasir engine` under this very interpreter.

pods.py brings arguments, environment and probes from pod templates, cli/serve.py from its options.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvasir.local.place import Place
from kvasir.local.process import Probe, ProcessSpec
from kvasir_contract.endpoints import KILL_MARGIN_SECONDS

COMMAND: Final = (sys.executable, "-P", "-m", "kvasir.cli.main")
"""`kvasir`; -P: a torch.py in the working directory is not imported."""


@dataclass(frozen=True)
class ProbeSettings:
    """A pod's HTTP probe, before it has an address here."""

    path: str
    period: float
    timeout: float
    failures: int

    def at(self, url: str) -> Probe:
        return Probe(url + self.path, self.period, self.timeout, self.failures)


@dataclass(frozen=True)
class Probes:
    """What a container is asked."""

    readiness: ProbeSettings
    liveness: ProbeSettings
    startup: ProbeSettings | None


ENGINE_PROBES: Final = Probes(
    readiness=ProbeSettings("/health/ready", period=5, timeout=2, failures=2),
    liveness=ProbeSettings("/health/live", period=10, timeout=5, failures=3),
    startup=None,
)
FRONTEND_PROBES: Final = replace(
    ENGINE_PROBES, startup=ProbeSettings("/health/live", period=2, timeout=5, failures=300)
)


def grace_of(drain_timeout: float) -> float:
    """Seconds from SIGTERM to SIGKILL, as pods have it."""
    return drain_timeout + KILL_MARGIN_SECONDS


def inherited_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's environment without options of Kvasir: a child gets its own, as a pod does."""
    return {name: value for name, value in environ.items() if not name.startswith("KVASIR_")}


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
        readiness=probes.readiness.at(url),
        liveness=probes.liveness.at(url),
        startup=None,
        status_url=f"{url}/status",
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
        readiness=probes.readiness.at(place.url),
        liveness=probes.liveness.at(place.url) if alone else None,
        startup=probes.startup.at(place.url) if alone and probes.startup else None,
        status_url=None,
        grace=grace,
        pass_fds=(place.listener.fileno(),),
    )
