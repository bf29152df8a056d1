"""Ports, paths and probes of the pods."""

from dataclasses import dataclass
from typing import Final

HTTP_PORT: Final = 8000  # of a frontend
LINK_PORT: Final = 5570  # of a frontend, for engines
MASTER_PORT: Final = 5571  # of node 0 of an engine with several pods, for the other nodes
KV_HAND_OVER_PORT: Final = 5572  # of an engine, for engines that fetch KV blocks
OPS_PORT: Final = 8081  # probes, status and metrics, outside the API's event loop

HTTP_PORT_NAME: Final = "http"
LINK_PORT_NAME: Final = "link"
MASTER_PORT_NAME: Final = "master"
KV_HAND_OVER_PORT_NAME: Final = "kv-hand-over"
OPS_PORT_NAME: Final = "ops"

LIVE_PATH: Final = "/health/live"
READY_PATH: Final = "/health/ready"
STATUS_PATH: Final = "/status"
METRICS_PATH: Final = "/metrics"
# GET on a frontend's ops port: a status report when a request is live, or after MAX_DEMAND_WAIT_SECONDS
DEMAND_PATH: Final = "/demand"
CLOSE_GATE_PATH: Final = "/gate/close"  # POST, as the next one; answered with a status report
OPEN_GATE_PATH: Final = "/gate/open"

GATE_SECONDS: Final = 10.0  # a closed gate then opens by itself
MAX_DEMAND_WAIT_SECONDS: Final = 25.0  # proxies and firewalls forget silent connections later

ANY_HOST: Final = "*"  # IPv4 and IPv6

KILL_MARGIN_SECONDS: Final = 15.0  # from the end of a drain to SIGKILL
SHUTDOWN_DELAY_SECONDS: Final = 5.0  # connections arrive after SIGTERM, until no Service routes them


@dataclass(frozen=True)
class ProbeTiming:
    """An HTTP GET every `period` seconds, which fails after `failures` failures in a row."""

    path: str
    period: int
    timeout: int
    failures: int


LIVENESS: Final = ProbeTiming(LIVE_PATH, period=10, timeout=5, failures=3)
READINESS: Final = ProbeTiming(READY_PATH, period=5, timeout=2, failures=2)
# For a download of config and tokenizer. An engine is live while its loading makes progress instead.
FRONTEND_STARTUP: Final = ProbeTiming(LIVE_PATH, period=2, timeout=5, failures=300)
