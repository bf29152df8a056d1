"""Settings of engines and frontends: the link, the port for probes and metrics, logs, drains."""

from dataclasses import dataclass

from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_int
from kvasir_contract.endpoints import ANY_HOST, OPS_PORT
from kvasir_contract.units import parse_duration


@dataclass(frozen=True)
class LinkConfig:
    link: tuple[str, ...] = option(
        (),
        "link addresses, ipc:///path or tcp://host:port; a frontend binds one, an engine connects to all",
        many=True,
        metavar="ADDRESS",
    )
    link_keys: str | None = option(
        None, "directory with the CURVE keys of this side; required for tcp:// except on loopback", metavar="DIR"
    )
    service_uid: str = option(
        "", "UID of the InferenceService; a frontend rejects engines with another UID", metavar="UID"
    )
    heartbeat_timeout: float = option(
        10.0, "treat a peer as lost after this time without a message", parse=parse_duration, metavar="TIME"
    )

    def __post_init__(self) -> None:
        if self.heartbeat_timeout <= 0:
            raise ConfigError(
                f"--heartbeat-timeout {self.heartbeat_timeout:g}: every peer would be lost immediately; heartbeats "
                "are sent every second, so give 3s or more"
            )


@dataclass(frozen=True)
class OpsConfig:
    ops_host: str = option(
        "127.0.0.1", f"address for probes and metrics; {ANY_HOST} for all addresses", metavar="HOST"
    )
    ops_port: int | None = option(
        None,
        f"port for probes and metrics; 0 chooses a free one [default: {OPS_PORT} for an engine; none for a "
        "frontend, whose API port answers probes too]",
        parse=parse_int(0, 65535),
    )


@dataclass(frozen=True)
class ProcessConfig:
    drain_timeout: float = option(
        60.0, "time on SIGTERM for running requests to finish", parse=parse_duration, metavar="TIME"
    )
    log_level: str = option("info", "lowest level to log", choices=("debug", "info", "warning", "error"))
    log_format: str = option("text", "format of log lines", choices=("text", "json"))
