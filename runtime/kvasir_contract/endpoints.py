"""Ports, paths and probes of the pods."""

from dataclasses import dataclass
from typing import Final

HTTP_PORT: Final = 8000  # frontend
LINK_PORT: Final = 5570  # frontend, for engines
MASTER_PORT: Final = 5571  # node 0 of an engine, for its other nodes
KV_HAND_OVER_PORT: Final = 5572  # engine, for other engines
OPS_PORT: Final = 8081  # probes, status, metrics

HTTP_PORT_NAME: Final = "http"
LINK_PORT_NAME: Final = "link"
KV_HAND_OVER_PORT_NAME: Final = "kv-hand-over"
OPS_PORT_NAME: Final = "ops"

LIVE_PATH: Final = "/health/live"
READY_PATH: Final = "/health/ready"
STATUS_PATH: Final = "/status"
METRICS_PATH: Final = "/metrics"
# on a frontend: GET waits at most MAX_DEMAND_WAIT_SECONDS for a live request and returns a status report
DEMAND_PATH: Final = "/demand"
CLOSE_GATE_PATH: Final = "/gate/close"  # POST, as the next one; returns a status report
OPEN_GATE_PATH: Final = "/gate/open"

GATE_SECONDS: Final = 10.0  # then the gate opens by itself
MAX_DEMAND_WAIT_SECONDS: Final = 25.0  # proxies drop silent connections later

ANY_HOST: Final = "*"

KILL_MARGIN_SECONDS: Final = 15.0  # from the end of a drain to SIGKILL
SHUTDOWN_DELAY_SECONDS: Final = 5.0  # requests still arrive after SIGTERM


@dataclass(frozen=True)
class ProbeTiming:
    path: str
    period: int
    timeout: int
    failures: int


LIVENESS: Final = ProbeTiming(LIVE_PATH, period=10, timeout=5, failures=3)
READINESS: Final = ProbeTiming(READY_PATH, period=5, timeout=2, failures=2)
FRONTEND_STARTUP: Final = ProbeTiming(LIVE_PATH, period=2, timeout=5, failures=300)
