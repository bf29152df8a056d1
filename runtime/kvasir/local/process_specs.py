"""ProcessSpecs of frontends and engines, which run under this interpreter."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvasir.config.vllm import variables as vllm
from kvasir.local.place import LOOPBACK, Place
from kvasir.local.supervision.process_spec import Probe, ProcessSpec
from kvasir.process.listening import url
from kvasir_contract.endpoints import (
    FRONTEND_STARTUP,
    KILL_MARGIN_SECONDS,
    LIVENESS,
    READINESS,
    STATUS_PATH,
    ProbeTiming,
)
from kvasir_contract.environment import PREFIX

# -P: a torch.py in the working directory is not imported.
COMMAND: Final = (sys.executable, "-P", "-m", "kvasir.cli.main")


@dataclass(frozen=True)
class Probes:
    readiness: ProbeTiming
    liveness: ProbeTiming
    startup: ProbeTiming | None


ENGINE_PROBES: Final = Probes(READINESS, LIVENESS, startup=None)
FRONTEND_PROBES: Final = Probes(READINESS, LIVENESS, startup=FRONTEND_STARTUP)


def probe_at(base: str, timing: ProbeTiming) -> Probe:
    return Probe(base + timing.path, timing.period, timing.timeout, timing.failures)


def grace_of(drain_timeout: float) -> float:
    """Return the seconds from SIGTERM to SIGKILL, as in pods."""
    return drain_timeout + KILL_MARGIN_SECONDS


def inherited_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    # A child gets no options of Kvasir or vLLM from the shell, as in a pod.
    return {name: value for name, value in environ.items() if not name.startswith((PREFIX, vllm.PREFIX))}


def engine_spec(
    place: Place,
    rank: int,
    args: Sequence[str],
    env: Mapping[str, str],
    grace: float,
    probes: Probes = ENGINE_PROBES,
) -> ProcessSpec:
    port, env = place.engine_ops_ports[rank], {**env, **place.engine_env(rank)}
    return replace(_spec(place, f"engine-{rank}", port, args, env, grace, probes), ends_last=True)


def frontend_spec(
    place: Place,
    number: int,
    args: Sequence[str],
    env: Mapping[str, str],
    grace: float,
    probes: Probes = FRONTEND_PROBES,
) -> ProcessSpec:
    # Frontends share one listening socket, and each has its own port for probes.
    port, env = place.frontend_ops_ports[number], {**env, **place.frontend_env(number)}
    spec = _spec(place, f"frontend-{number}", port, args, env, grace, probes)
    return replace(spec, pass_fds=(place.listener.fileno(),))


def _spec(
    place: Place, name: str, port: int, args: Sequence[str], env: Mapping[str, str], grace: float, probes: Probes
) -> ProcessSpec:
    base = url(LOOPBACK, port)
    return ProcessSpec(
        service=place.service,
        name=name,
        argv=(*COMMAND, *args),
        env=env,
        readiness=probe_at(base, probes.readiness),
        liveness=probe_at(base, probes.liveness),
        startup=None if probes.startup is None else probe_at(base, probes.startup),
        status_url=base + STATUS_PATH,
        grace=grace,
    )
