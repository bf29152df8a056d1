"""Settings of frontends."""

import dataclasses
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from kvasir.config.chat_settings import ChatConfig
from kvasir.config.lora_settings import AdaptersConfig
from kvasir.config.options import ConfigError, option
from kvasir.config.parsers import parse_fraction, parse_int
from kvasir.config.process_settings import LinkConfig, OpsConfig, ProcessConfig
from kvasir.config.settings import ModelConfig
from kvasir.config.tls_settings import TlsConfig
from kvasir_contract.endpoints import ANY_HOST, HTTP_PORT
from kvasir_contract.units import parse_bytes, parse_duration


@dataclass(frozen=True)
class ServerConfig:
    host: str = option(
        "127.0.0.1", f"address to listen on; {ANY_HOST} for all addresses, IPv4 and IPv6", metavar="HOST"
    )
    port: int = option(HTTP_PORT, "port to listen on; 0 chooses a free one", parse=parse_int(0, 65535))
    fd: int | None = option(
        None, "file descriptor of an inherited, bound socket to use instead of host and port", parse=parse_int(0)
    )
    uds: str | None = option(
        None, "Unix socket to listen at, instead of host and port", metavar="PATH", never_blank=True
    )
    api_key: tuple[str, ...] = option(
        (),
        "API keys; clients must send one as bearer token [default: no key required]",
        many=True,
        metavar="KEY",
        never_blank=True,
    )
    api_key_dir: str | None = option(
        None, "directory (a mounted Secret) with one API key per file", metavar="DIR", never_blank=True
    )
    root_path: str = option(
        "",
        "path under which a proxy shows this server, for example /llm; requests may come with it or without",
        metavar="PATH",
    )
    middleware: tuple[str, ...] = option(
        (),
        "ASGI middleware classes, or functions of request and call_next, as module.name [default: none]",
        many=True,
        metavar="NAME",
    )
    disable_fastapi_docs: bool = option(False, "do not serve /docs and /openapi.json")
    disable_page: bool = option(False, "do not show browsers a page at /; / describes the server as JSON")
    enable_request_id_headers: bool = option(True, "send each request's id as X-Request-Id")
    admin_api_key: tuple[str, ...] = option(
        (),
        "API keys of administrators, which control calls such as POST /reset_prefix_cache need; they are accepted "
        "for every other request too [default: control calls are refused]",
        many=True,
        metavar="KEY",
        never_blank=True,
    )
    admin_api_key_dir: str | None = option(
        None,
        "directory (a mounted Secret) with one administrator's API key per file",
        metavar="DIR",
        never_blank=True,
    )
    api_server_count: int = option(
        1,
        "number of frontend processes of the service, which share the port; limits such as --max-live-requests are "
        "those of each",
        parse=parse_int(1, 64),
    )
    max_request_bytes: int = option(
        32 * 2**20, "maximum size of a request body [default: 32Mi]", parse=parse_bytes, metavar="SIZE"
    )
    max_upload_bytes: int | None = option(
        None,
        "maximum size of all incomplete request bodies together, else status 429 [default: 4 × max-request-bytes]",
        parse=parse_bytes,
        metavar="SIZE",
    )
    max_parsed_bytes: int | None = option(
        None,
        "maximum memory of the bodies of all requests in flight, else status 429 [default: 6 × max-request-bytes]",
        parse=parse_bytes,
        metavar="SIZE",
    )
    max_live_requests: int = option(
        4096, "maximum requests in flight; further ones get status 429", parse=parse_int(1)
    )
    max_client_share: float = option(
        0.5,
        "fraction of max-live-requests for one client, that is, one API key of several, or one connection",
        parse=parse_fraction,
        metavar="FRACTION",
    )
    max_live_tokens: int = option(
        2**26,
        "maximum tokens of the requests in flight, prompts and outputs so far; further requests get status 429",
        parse=parse_int(1),
    )
    max_lost_engines: int = option(
        3,
        "fail a request with which so many engines were lost in a row, each before three new tokens; before that, "
        "another engine continues it",
        parse=parse_int(1),
    )
    hold_timeout: float = option(
        600.0,
        "while no engine is ready, hold requests for this time, then answer with status 503; 0 holds none "
        "[default: 10m]",
        parse=parse_duration,
        metavar="TIME",
    )
    max_held_requests: int = option(
        1000, "maximum requests that are held; further ones get status 503", parse=parse_int(1)
    )
    max_held_bytes: int = option(
        64 * 2**20,
        "maximum size of the prompts that are held, four bytes for each token, else status 503 [default: 64Mi]",
        parse=parse_bytes,
        metavar="SIZE",
    )
    upload_timeout: float = option(
        60.0,
        "time limit for receiving the headers of a request, and for its body",
        parse=parse_duration,
        metavar="TIME",
    )
    stalled_reader_timeout: float = option(
        60.0,
        "disconnect a client that reads nothing of its answer for this long",
        parse=parse_duration,
        metavar="TIME",
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "origins whose web pages may call the API (CORS), * for all [default: none]",
        many=True,
        metavar="ORIGIN",
    )
    allowed_methods: tuple[str, ...] = option(
        ("GET", "HEAD", "POST"),
        "methods that these pages may use [default: GET HEAD POST]",
        many=True,
        metavar="METHOD",
    )
    allowed_headers: tuple[str, ...] = option(
        ("*",), "request headers that these pages may send [default: all]", many=True, metavar="HEADER"
    )
    allow_credentials: bool = option(False, "let these pages send cookies and HTTP authentication")
    strict_fields: bool = option(False, "reject unknown fields of a request, which are ignored otherwise")
    enable_tokenizer_info_endpoint: bool = option(False, "answer GET /tokenizer_info, with the chat template")
    log_requests: bool = option(True, "log a line at the end of each request, except probes")
    otlp_traces_endpoint: str | None = option(
        None,
        "send OpenTelemetry traces of requests to this collector, for example http://localhost:4318/v1/traces, or "
        "grpc://localhost:4317 [default: no traces]",
        metavar="URL",
    )
    disable_log_stats: bool = option(False, "do not log the load of the service every 10 s while there is traffic")
    uvicorn_log_level: str = option(
        "error",
        "level of the messages of uvicorn, the HTTP library",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
    )
    log_config_file: str | None = option(
        None,
        "configuration of the frontend's logs, a dictConfig of Python's logging as JSON or YAML; applied after "
        "--log-level and --log-format",
        metavar="FILE",
        never_blank=True,
    )
    shutdown_delay: float = option(
        0.0,
        "on SIGTERM, accept requests for this time, until load balancers have removed this server",
        parse=parse_duration,
        metavar="TIME",
    )

    @property
    def upload_bytes(self) -> int:
        return 4 * self.max_request_bytes if self.max_upload_bytes is None else self.max_upload_bytes

    @property
    def client_requests(self) -> int:
        """Return the maximum requests of one client in flight."""
        return max(1, int(self.max_client_share * self.max_live_requests))

    @property
    def parsed_bytes(self) -> int:
        return 6 * self.max_request_bytes if self.max_parsed_bytes is None else self.max_parsed_bytes

    def __post_init__(self) -> None:
        if self.max_request_bytes < 1:
            raise ConfigError(
                f"--max-request-bytes {self.max_request_bytes}: no request could be accepted; give 1Mi or more"
            )
        if self.upload_bytes < self.max_request_bytes:
            raise ConfigError(
                f"--max-upload-bytes {self.upload_bytes} is below --max-request-bytes {self.max_request_bytes}: "
                "the largest body could never be received; give a multiple of --max-request-bytes"
            )
        for name in ("upload_timeout", "stalled_reader_timeout"):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"--{name.replace('_', '-')} 0: every client would be disconnected; give 10s or more"
                )
        if self.root_path and not re.fullmatch(r"(/[^/\s?#]+)+", self.root_path):
            raise ConfigError(
                f"--root-path {self.root_path}: give a path such as /llm, with a slash at the beginning and "
                "none at the end"
            )
        self._check_origins()
        self._check_keys()
        self._check_traces()

    def _check_traces(self) -> None:
        if (endpoint := self.otlp_traces_endpoint) is None:
            return
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https", "grpc", "grpcs") or not url.hostname:
            raise ConfigError(
                f"--otlp-traces-endpoint {endpoint}: give a URL with http://, https://, grpc:// or grpcs:// and a "
                "host, for example http://localhost:4318/v1/traces"
            )

    def _check_keys(self) -> None:
        # An unset shell variable must not disable authentication.
        kinds = (
            ("--api-key", self.api_key, self.api_key_dir),
            ("--admin-api-key", self.admin_api_key, self.admin_api_key_dir),
        )
        for flag, keys, directory in kinds:
            if not all(key.strip() for key in keys):
                raise ConfigError(f"{flag}: a key is empty; check the variable that it comes from")
            if directory is not None and not directory.strip():
                raise ConfigError(
                    f"{flag}-dir: the directory's name is empty; check the variable that it comes from"
                )

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                raise ConfigError(
                    f"--allowed-origins {origin}: an origin is a scheme, a host and an optional port, for example "
                    "https://chat.example.org:8443, without a path or a slash at the end; * allows all"
                )
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError(
                "--allow-credentials with --allowed-origins *: any web page could act as its visitor; name origins"
            )
        if self.allow_credentials and not self.allowed_origins:
            raise ConfigError("--allow-credentials has no effect without --allowed-origins: name the origins")


@dataclass(frozen=True)
class FrontendConfig:
    model: ModelConfig
    server: ServerConfig = dataclasses.field(default_factory=ServerConfig)
    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)
    chat: ChatConfig = dataclasses.field(default_factory=ChatConfig)
    adapters: AdaptersConfig = dataclasses.field(default_factory=AdaptersConfig)
    link: LinkConfig = dataclasses.field(default_factory=LinkConfig)
    ops: OpsConfig = dataclasses.field(default_factory=OpsConfig)
    process: ProcessConfig = dataclasses.field(default_factory=ProcessConfig)
