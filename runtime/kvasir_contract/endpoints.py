"""Ports, paths and probes of the pods."""

from dataclasses import dataclass
from typing import Final

HTTP_PORT: Final = 8000
"""The OpenAI API of a frontend."""
LINK_PORT: Final = 5570
"""The port of a frontend to which engines connect."""
MASTER_PORT: Final = 5571
"""The port of node 0 of an engine with several pods, to which the engine's other nodes connect."""
KV_HAND_OVER_PORT: Final = 5572
"""The port of an engine from which the other engines of its service fetch KV blocks."""
OPS_PORT: Final = 8081
"""Probes, status and metrics of frontends and engines, served outside the API's event loop."""

HTTP_PORT_NAME: Final = "http"
LINK_PORT_NAME: Final = "link"
MASTER_PORT_NAME: Final = "master"
KV_HAND_OVER_PORT_NAME: Final = "kv-hand-over"
OPS_PORT_NAME: Final = "ops"

LIVE_PATH: Final = "/health/live"
READY_PATH: Final = "/health/ready"
STATUS_PATH: Final = "/status"
METRICS_PATH: Final = "/metrics"
DEMAND_PATH: Final = "/demand"
"""On the ops port of a frontend: a GET waits until a request is live, at most MAX_DEMAND_WAIT_SECONDS, and responds
with a status report."""
CLOSE_GATE_PATH: Final = "/gate/close"
"""On the ops port of a frontend: a POST closes the gate, and responds with a status report. The same applies to the
next path."""
OPEN_GATE_PATH: Final = "/gate/open"

GATE_SECONDS: Final = 10.0
"""Time after which a closed gate opens by itself."""
MAX_DEMAND_WAIT_SECONDS: Final = 25.0
"""Below the limit at which proxies and firewalls forget silent connections."""

ANY_HOST: Final = "*"
"""The host option for all addresses of the machine, IPv4 and IPv6."""

KILL_MARGIN_SECONDS: Final = 15.0
"""Time between the end of a drain and SIGKILL, in which a process closes its links and exits."""
SHUTDOWN_DELAY_SECONDS: Final = 5.0
"""How long a frontend accepts connections after SIGTERM, until no Service routes new ones to it."""


@dataclass(frozen=True)
class ProbeTiming:
    """An HTTP GET every `period` seconds. The probe fails after `failures` failures in a row."""

    path: str
    period: int
    timeout: int
    failures: int


LIVENESS: Final = ProbeTiming(LIVE_PATH, period=10, timeout=5, failures=3)
READINESS: Final = ProbeTiming(READY_PATH, period=5, timeout=2, failures=2)
FRONTEND_STARTUP: Final = ProbeTiming(LIVE_PATH, period=2, timeout=5, failures=300)
"""A frontend may have to download config and tokenizer from a hub first. Engines have no startup probe, because
their liveness probe passes while loading makes progress."""
